"""On the inline runtime a run that was killed and goes on becomes, to the last bit, what it would have been."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from test_programs import TINY

from shoal.checkpoints import Checkpoints
from shoal.experiment import comparing, registry
from shoal.experiment.training import describe_env, resume, train
from shoal.loops.wiring import Settings
from shoal.program import Program

UPDATES = 5
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in registry.names()),
    *((name, {"lstm": 8}) for name in ("impala", "appo", "ppo", "a3c")),
    ("a3c", {"synchronous": True}),
    ("apex_dqn", {"quantiles": 5}),
    ("d4pg", {"critic": "mixture"}),
]
OPTIONS: dict[str, Any] = {"runtime": "inline", "checkpoint_updates": UPDATES, "checkpoint_replay": True, "quiet": True}
OPTIONS |= {"stop_updates": 2 * UPDATES, "eval_episodes": 1, "eval_every": 0.01}


class Killed(BaseException):
    """As sudden as SIGKILL, within this process."""


def tiny(algorithm: str, **chosen: Any) -> Any:
    module = registry.load(algorithm)
    options = {field.name for field in dataclasses.fields(module.Config)}
    return module.Config(**{name: value for name, value in TINY.items() if name in options}, **chosen)


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
