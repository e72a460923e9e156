"""On the inline runtime a run that was killed and goes on becomes, to the last bit, what it would have been."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_programs import TINY

from logged_data import page_options
from shoal.checkpoints import Checkpoints
from shoal.errors import UserError
from shoal.experiment import bitwise as comparing
from shoal.experiment import exact
from shoal.experiment.environments import describe_env
from shoal.experiment.training import resume, train
from shoal.loops.wiring import Settings
from shoal.program import Program
from shoal.replay import Replay
from shoal.runs import registry
from shoal.runs.directory import read_weights
from shoal.services.metrics import Reporter

UPDATES = 5
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in registry.names()),
    *((name, {"lstm": 8}) for name in ("impala", "appo", "ppo", "a3c")),
    ("bc", {"lstm": 8}),
    ("ppo", {"act_ahead": True}),
    ("iql", {"online": True, "replay": "prioritized"}),
    ("a3c", {"synchronous": True}),
    ("apex_dqn", {"quantiles": 5}),
    ("d4pg", {"critic": "quantile"}),
]
OPTIONS: dict[str, Any] = {"runtime": "inline", "checkpoint_updates": UPDATES, "checkpoint_replay": True, "quiet": True}
OPTIONS |= {"stop_updates": 2 * UPDATES, "eval_episodes": 1, "eval_every": 0.01}


class Killed(BaseException):
    """As sudden as SIGKILL, within this process."""


def tiny(algorithm: str, **chosen: Any) -> Any:
    module = registry.load(algorithm)
    options = {field.name for field in dataclasses.fields(module.Config)}
    small = {name: value for name, value in TINY.items() if name in options}
    return module.Config(**small, **page_options(algorithm), **chosen)


def killed(cfg: Any, path: Path, patch: pytest.MonkeyPatch, **options: Any) -> None:
    """A run that ends when its first checkpoint is written."""
    save = Checkpoints.save

    def last_words(self: Checkpoints, parts: Any, meta: Any) -> None:
        save(self, parts, meta)
        raise Killed

    with patch.context() as patched:
        patched.setattr(Checkpoints, "save", last_words)
        with pytest.raises(Killed):
            train(cfg, run_dir=str(path), **{**OPTIONS, **options})


def found_differences(one: Path, other: Path, cfg: Any) -> list[str]:
    module = registry.of_config(cfg)[1]
    program: Program = module.program(cfg, describe_env(cfg), Settings(max_updates=2 * UPDATES))
    left, right = (comparing.checkpoints_by_updates(run) for run in (one, other))
    assert [*left] == [*right]
    assert all(checkpoint.meta["exact"] for checkpoint in left.values())
    found = [
        difference.words
        for updates in left
        for difference in comparing.differences(left[updates], right[updates], (one, other), program)
    ]
    assert len(comparing.evaluations(one)) >= 2
    if comparing.evaluations(one) != comparing.evaluations(other):
        found.append("evaluations")
    return found


@pytest.mark.parametrize(("algorithm", "chosen"), CASES, ids=lambda value: str(value))
def test_killed_and_resumed_is_what_it_would_have_been(
    algorithm: str, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = tiny(algorithm, **chosen)
    train(cfg, run_dir=str(tmp_path / "straight"), **OPTIONS)
    killed(cfg, tmp_path / "resumed", monkeypatch)
    resume(tmp_path / "resumed", quiet=True)
    assert found_differences(tmp_path / "straight", tmp_path / "resumed", cfg) == []


def test_taking_checkpoints_does_not_change_a_run(tmp_path: Path) -> None:
    cfg = tiny("apex_dqn")
    for name, between in (("often", 1), ("once", 2 * UPDATES)):
        train(cfg, run_dir=str(tmp_path / name), **{**OPTIONS, "checkpoint_updates": between, "keep": 100})
    often, once = (read_weights(tmp_path / name) for name in ("often", "once"))
    assert all(np.array_equal(often[name], once[name]) for name in once)
    taken = [len(list((tmp_path / name / "checkpoints").glob("0*"))) for name in ("often", "once")]
    assert taken[0] > taken[1]


@pytest.mark.parametrize("algorithm", ["impala", pytest.param("a3c", marks=pytest.mark.slow)])
def test_it_goes_on_with_other_actors_after_its_end_and_on_another_runtime(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tiny(algorithm), tmp_path / "run", monkeypatch)
    resume(tmp_path / "run", quiet=True, actors=3)
    resume(tmp_path / "run", quiet=True, stop_updates=2 * UPDATES + 3)
    resume(tmp_path / "run", quiet=True, stop_updates=2 * UPDATES + 6, actors=1, runtime="local")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["learner_steps"] >= 2 * UPDATES + 6


@pytest.mark.parametrize("error", [KeyError("sums"), AttributeError("'str' object has no attribute 'items'")])
def test_a_state_of_other_code_is_refused_in_a_sentence(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tiny("impala"), tmp_path / "run", monkeypatch)

    def older(*_: object) -> None:
        raise error

    monkeypatch.setattr(Reporter, "load_state_dict", older)
    with pytest.raises(UserError, match="The state of learner does not fit this program"):
        resume(tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clock": 1e308}, r"The state of the clock does not fit this program \(it stood at 1e\+308 seconds\)"),
        ({"clock": float("nan")}, "The state of the clock does not fit this program"),
        ({"clock": "late"}, "The state of the clock does not fit this program"),
        ({"generators": 3}, "The state of the random generators does not fit this program"),
        (None, "is damaged: it lacks what its nodes share"),
    ],
)
def test_what_nodes_share_is_looked_at_before_a_run_goes_on(
    changes: dict[str, Any] | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tiny("impala"), tmp_path / "run", monkeypatch)
    states_of = exact.states_of

    def forged(program: Program, run: Path, parts: dict[str, Any], meta: dict[str, Any]) -> Any:
        shared = {} if changes is None else parts[exact.SHARED] | changes
        return states_of(program, run, parts | {exact.SHARED: shared}, meta)

    monkeypatch.setattr(exact, "states_of", forged)
    with pytest.raises(UserError, match=sentence):
        resume(tmp_path / "run", quiet=True)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Replay, "save", full)
    train(tiny("apex_dqn"), run_dir=str(tmp_path / "run"), **{**OPTIONS, "quiet": False})
    told = [line for line in capfd.readouterr().err.splitlines() if "No space left" in line]
    assert len(told) == 1
    assert "the checkpoint 000001 could not be written: No space left on device" in told[0]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["learner_steps"] == 2 * UPDATES
