"""What the driver does around a run: causes of failures, what is refused before it starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.algorithms import apex_dqn
from shoal.errors import UserError
from shoal.experiment.training import take_snapshot, train, user_error
from shoal.program import NodeDied
from shoal.runtime import RunFailed


class FakeRun:
    """A run whose metrics are gone: the supervisor finds out why."""

    def __init__(self) -> None:
        self.waited = 0.0

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        raise RunFailed("learner", "node 'learner' was killed by SIGKILL")


class Answers:
    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.__dict__.update(answers)


def test_when_the_metrics_are_gone_the_supervisor_names_the_cause() -> None:
    def dead(evaluations_from: int) -> None:
        raise NodeDied("metrics")

    run = FakeRun()
    with pytest.raises(RunFailed, match="'learner' was killed"):
        take_snapshot(cast(Any, run), Answers(snapshot=dead), 0)
    assert run.waited > 0


def test_what_the_user_got_wrong_is_told_as_such_even_from_inside_a_node() -> None:
    assert user_error(RunFailed("learner", "raised …", "Traceback: …", user_error="Give more.")) == "Give more."
    assert user_error(RunFailed("learner", "raised …", "Traceback:\nValueError: no")) is None
    assert user_error(RunFailed("learner", "was killed by SIGKILL")) is None


def test_a_replay_that_cannot_fit_into_memory_is_refused_with_a_capacity_that_fits(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(env="CartPole-v1", capacity=10**15)
    with pytest.raises(UserError, match=r"--capacity 10+ needs 16,000,000 GB .* give --capacity \d+ or less"):
        train(cfg, quiet=True, stop_updates=1, run_dir=str(tmp_path / "run"))
