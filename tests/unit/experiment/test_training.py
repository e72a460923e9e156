"""What the driver does around a run: causes of failures, which weights are kept, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms import apex_dqn
from shoal.errors import UserError
from shoal.experiment.training import EVALUATOR, WEIGHTS, Interrupts, last_weights, take_snapshot, train, user_error
from shoal.program import NodeDied
from shoal.runtime import RunFailed


class FakeRun:
    """A run whose nodes are plain objects; a missing one is dead."""

    def __init__(self, **nodes: object) -> None:
        self.nodes = nodes
        self.waited = 0.0

    def client(self, handle: Any) -> Any:
        if handle.name not in self.nodes:
            raise NodeDied(handle.name)
        return self.nodes[handle.name]

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        raise RunFailed("learner", "node 'learner' was killed by SIGKILL")


class Answers:
    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.__dict__.update(answers)


NEWEST = {"w": np.zeros(2)}
CONFIRMED = {"w": np.ones(2)}


def run_with(**nodes: object) -> Any:
    return FakeRun(**nodes)


def weights_node() -> Answers:
    return Answers(newer=lambda than: (7, NEWEST))


def test_the_weights_that_were_confirmed_are_kept_not_what_became_of_them() -> None:
    evaluator = Answers(confirmed=lambda: (5, CONFIRMED))
    run = run_with(**{WEIGHTS.name: weights_node(), EVALUATOR.name: evaluator})
    assert last_weights(run, reached=True) is CONFIRMED
    assert last_weights(run, reached=False) is NEWEST


def test_the_newest_weights_are_kept_when_the_evaluator_is_gone() -> None:
    assert last_weights(run_with(**{WEIGHTS.name: weights_node()}), reached=True) is NEWEST


def test_there_may_be_no_weights_to_keep() -> None:
    assert last_weights(run_with(), reached=False) == {}
    assert last_weights(run_with(**{WEIGHTS.name: Answers(newer=lambda than: None)}), reached=False) == {}


def test_when_the_metrics_are_gone_the_supervisor_names_the_cause() -> None:
    def dead(evaluations_from: int) -> None:
        raise NodeDied("metrics")

    run = run_with()
    with pytest.raises(RunFailed, match="'learner' was killed"):
        take_snapshot(run, Answers(snapshot=dead), 0)
    assert run.waited > 0


def test_what_the_user_got_wrong_is_told_as_such_even_from_inside_a_node() -> None:
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1\nshoal.errors.UserError: Give more.\n'
    assert user_error(RunFailed("learner", "raised …", traceback)) == "Give more."
    assert user_error(RunFailed("learner", "raised …", "Traceback:\nValueError: no")) is None
    assert user_error(RunFailed("learner", "was killed by SIGKILL")) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends_at_once(number: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert not interrupts.asked
        os.kill(os.getpid(), number)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_replay_that_cannot_fit_into_memory_is_refused_with_a_capacity_that_fits(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(env="CartPole-v1", capacity=10**15)
    with pytest.raises(UserError, match=r"--capacity 10+ needs 16,000,000 GB .* give --capacity \d+ or less"):
        train(cfg, quiet=True, stop_updates=1, run_dir=str(tmp_path / "run"))
