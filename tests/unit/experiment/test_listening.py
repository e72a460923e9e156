"""Callbacks, sinks and tables: who hears of a run's rows, and what happens when they fail."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import UserError
from shoal.experiment.listeners import Callbacks, Listeners
from shoal.runs import sinks
from shoal.runs.options import RunOptions
from shoal.runs.sinks import FOLDER, Sinks, TensorBoard
from shoal.runs.tables import flat, metrics, table

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
    answers: list[Any] = [None, 1, "yes", True, False]
    listeners = Listeners(Callbacks(on_evaluation=lambda row: answers.pop(0)), print)
    for expected in (False, False, False, True, True):  # and none takes it back
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


def test_who_learns_without_a_step_is_logged_over_updates(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    made = Sinks(["tensorboard"], tmp_path, {}, 0, print)
    made.write({"learner_steps": 30.0, "loss": 1.0})
    made.write({"env_steps": 0, "eval_return": 7.0, "evaluation/version": 20})
    made.close()
    found = loading.EventAccumulator(str(tmp_path / FOLDER))
    found.Reload()
    assert [event.step for event in found.Scalars("loss")] == [30]
    assert [event.step for event in found.Scalars("eval_return")] == [20]


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


LOGGED = '''
import json, struct, sys, time
from pathlib import Path
from shoal.runs.sinks import Sinks

run = Path(sys.argv[1])
made = Sinks(["wandb"], run, {"algorithm": "impala", "seed": 1, "config": {"gamma": 0.9}}, 0, print)
made.write({"env_steps": 200, "loss": 0.5, "odd": float("nan")})
made.write({"env_steps": 100, "eval_return": 7.0})  # an evaluation of steps that are past
made.close()


def records_of(data):
    """Of W&B's own file: after 7 bytes a log of LevelDB's kind, in blocks of 32 KiB."""
    place, part = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        part += data[place + 7 : place + 7 + size]
        if kind in (1, 4):  # a whole one, or the last piece of one
            yield part
            part = b""
        place += 7 + size


from wandb.proto.wandb_internal_pb2 import Record
(file,) = (run / "wandb").glob("offline-run-*/*.wandb")
until = time.monotonic() + 30.0
records = []
while not any(each.HasField("exit") for each in records) and time.monotonic() < until:
    time.sleep(0.1)  # W&B's own process may write on after finish() on a busy machine
    records = [Record.FromString(data) for data in records_of(file.read_bytes())]
begun = next(each.run for each in records if each.HasField("run"))
items = [each.history.item for each in records if each.HasField("history")]
rows = [{each.key or each.nested_key[0]: json.loads(each.value_json) for each in row} for row in items]
print(json.dumps({
    "id": begun.run_id,
    "config": {each.key: json.loads(each.value_json) for each in begun.config.update},
    "rows": [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows],
    "axes": [each.metric.step_metric for each in records if each.HasField("metric") and each.metric.glob_name == "*"],
    "ended": any(each.HasField("exit") for each in records),
}))
'''


def test_weights_and_biases_files_of_an_offline_run_can_be_read_back(tmp_path: Path) -> None:
    """The package itself, which keeps everything in a file of its own where there is no network. In a process of its
    own: it has temporary files until it ends."""
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("needs the wandb extra")
    (tmp_path / "name").mkdir()
    homes = {name: str(tmp_path / "home") for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, str(tmp_path / "name")],
        env={**os.environ, **homes, "WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["id"] == "name"
    assert found["config"].items() >= {"gamma": 0.9, "algorithm": "impala", "seed": 1}.items()
    assert found["rows"] == [{"env_steps": 200, "loss": 0.5}, {"env_steps": 100, "eval_return": 7.0}]
    assert found["axes"] == ["env_steps"]
    assert found["ended"]


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
