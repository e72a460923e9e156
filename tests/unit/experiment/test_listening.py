"""Callbacks, sinks and tables: who hears of a run's rows, and what happens when they fail."""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import UserError
from shoal.experiment import sinks
from shoal.experiment.listeners import Callbacks, Listeners
from shoal.experiment.options import RunOptions
from shoal.experiment.sinks import FOLDER, Sinks, TensorBoard
from shoal.experiment.tables import flat, metrics, table

ROW = {
    "kind": "progress",
    "seconds": 2.0,
    "counts": {"env_steps": 100.0},
    "rates": {"env_steps": 50.0},
    "values": {"loss": 0.5, "rho": None},
    "times": {"actor/0": {"inference": 0.25}},
}


def test_a_row_is_flat_and_its_names_are_those_of_the_field() -> None:
    assert flat(ROW) == {
        "seconds": 2.0,
        "env_steps": 100.0,
        "env_steps_per_second": 50.0,
        "loss": 0.5,
        "rho": None,
        "time/actor/0/inference": 0.25,
    }


def test_columns_are_of_one_length_and_what_is_not_known_is_nan() -> None:
    found = table([{"a": 1}, {"a": 2, "b": 3}])
    assert found["a"] == [1, 2]
    assert math.isnan(found["b"][0])
    assert found["b"][1] == 3


def test_rows_of_a_run_are_a_data_frame(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps(ROW) + "\n" + json.dumps({"kind": "evaluation", "eval_return": 3.0}) + "\n"
    )
    pytest.importorskip("pandas")
    frame = metrics(tmp_path).frame()
    assert list(frame["loss"]) == [0.5]
    assert list(metrics(tmp_path, "evaluation").frame()["eval_return"]) == [3.0]


def test_a_frame_without_pandas_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install 'shoal\[tables\]'"):
        table([]).frame()


def test_a_callback_ends_the_run_by_true_alone() -> None:
    answers: list[Any] = [None, 1, "yes", True]
    listeners = Listeners(Callbacks(on_evaluation=lambda row: answers.pop(0)), print)
    for expected in (False, False, False, True):
        listeners.tell("evaluation", {"eval_return": 1.0})
        assert listeners.stop is expected
    listeners.tell("loss", {})  # rows that nobody asked for


def test_what_a_callback_raises_is_raised_while_the_run_goes_on_and_told_when_it_ends() -> None:
    def fail(row: Mapping[str, Any]) -> None:
        raise KeyError("x")

    told: list[str] = []
    listeners = Listeners(Callbacks(on_progress=fail), told.append)
    with pytest.raises(KeyError):
        listeners.tell("progress", ROW)
    listeners.ending = True
    listeners.tell("progress", ROW)
    assert told == ["on_progress raised KeyError: 'x'"]


def test_a_checkpoint_is_told_once() -> None:
    told: list[Any] = []
    listeners = Listeners(Callbacks(on_checkpoint=told.append), print)
    for newest in (None, Path("a"), Path("a"), Path("b")):
        listeners.checkpoint(newest, 7)
    assert told == [{"path": "a", "updates": 7}, {"path": "b", "updates": 7}]


def test_a_callback_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UserError, match="on_progress is 3: give a function"):
        Callbacks(on_progress=3)  # type: ignore[arg-type]


class Failing:
    def __init__(self, run: Path, record: Any, step: int) -> None:
        self.written = 0

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self.written += 1
        if self.written == 2:
            raise ConnectionError("no network")

    def close(self) -> None:
        raise AssertionError("it was left out")


def test_a_sink_that_fails_is_told_of_once_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sinks.KINDS, "failing", (Failing, ()))
    told: list[str] = []
    made = Sinks(["failing"], tmp_path, {}, 0, told.append)
    for _ in range(4):
        made.write(flat(ROW))
    made.close()
    assert told == ["--log failing: nothing more is written there (no network); training goes on"]


def test_tensorboards_files_can_be_read_back(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    made = Sinks(["tensorboard"], tmp_path, {}, 0, print)
    for step in (100.0, 200.0):
        made.write({**flat(ROW), "env_steps": step, "loss": step / 2, "odd": float("nan")})
    made.close()
    found = loading.EventAccumulator(str(tmp_path / FOLDER))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(100, 50.0), (200, 100.0)]
    assert "odd" not in found.Tags()["scalars"]
    assert "rho" not in found.Tags()["scalars"]
    assert not made.write({"no steps": 1.0})  # type: ignore[func-returns-value]


def test_what_is_after_the_checkpoint_of_a_run_that_goes_on_is_not_shown(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for step, steps in ((0, (100, 200, 300)), (200, (200, 300))):
        made = TensorBoard(tmp_path, {}, step)
        for each in steps:
            made.write({"loss": float(step)}, each)
        made.close()
    found = loading.EventAccumulator(str(tmp_path / FOLDER))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(100, 0.0), (200, 200.0), (300, 200.0)]


def test_weights_and_biases_gets_config_steps_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in: the package itself is not among those that are tested with."""
    calls: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda row, step: calls.append((row, step)), finish=lambda: calls.append("finished")
    )
    fake: Any = types.ModuleType("wandb")
    fake.init = lambda **given: calls.append(given) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "name").mkdir()
    made = Sinks(["wandb"], tmp_path / "name", {"algorithm": "impala", "seed": 1, "config": {"gamma": 0.9}}, 0, print)
    made.write({"env_steps": 10, "loss": 0.5})
    made.close()
    assert calls[0]["name"] == calls[0]["id"] == "name"
    assert calls[0]["config"] == {"gamma": 0.9, "algorithm": "impala", "seed": 1}
    assert calls[1:] == [({"loss": 0.5}, 10), "finished"]


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("tensorbord", "--log tensorbord is not known: choose one of tensorboard, wandb. Did you mean tensorboard?"),
        ("tensorboard,", "--log  is not known"),
        ("wandb", "--log wandb needs a package that is not installed; run: pip install 'shoal[wandb]'"),
    ],
)
def test_what_cannot_be_logged_to_is_refused(log: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sinks.importlib.util.find_spec
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    with pytest.raises(UserError) as told:
        RunOptions(log=log).check()
    assert str(told.value).startswith(sentence)
