"""What an actor counts and reports of its environments, exactly."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from scripted import ScriptedEnvs

from shoal.envs.episodes import Episode
from shoal.loops.actor import EnvRunner
from shoal.loops.loop import TOLD_LOSSES
from shoal.program import Context
from shoal.services.metrics import Metrics


class Told(ScriptedEnvs):
    """Says that two episodes have ended."""

    def episodes(self) -> list[Any]:
        return [Episode(10.0, 3), Episode(20.0, 5)]


def test_rows_that_reset_are_no_steps_and_episodes_are_averaged() -> None:
    metrics = Metrics()
    runner = EnvRunner(cast(Any, Told([[[1.0]], [[1.0] * 9]])), metrics)
    for _ in range(4):  # of the first environment every second row is one that resets
        runner.step(np.zeros(2))
    assert runner.end_of_block() is True
    snapshot = metrics.snapshot()
    assert snapshot["counts"] == {"env_steps": 6, "episodes": 2}
    assert snapshot["values"] == {"actor_return": 15.0, "episode_length": 4.0}


def test_with_a_limit_steps_are_counted_once_and_the_last_block_says_so() -> None:
    metrics = Metrics(max_steps=8)
    runner = EnvRunner(cast(Any, ScriptedEnvs([[[1.0] * 9]] * 2)), metrics)
    more = []
    for _ in range(2):
        runner.step(np.zeros(2))
        runner.step(np.zeros(2))
        more.append(runner.end_of_block())
    assert more == [True, False]
    runner.report.flush()
    assert metrics.snapshot()["counts"]["env_steps"] == 8


def test_episodes_that_cannot_go_on_are_counted_as_lost_and_told() -> None:
    metrics = Metrics()
    runner = EnvRunner(cast(Any, ScriptedEnvs([[[1.0]]] * 5)), metrics)
    assert runner.load_state_dict({"open": 3, "count": 5, "why": "it has no state"}) is False
    runner.report.flush()
    snapshot = metrics.snapshot()
    assert snapshot["counts"] == {"lost_episodes": 3}
    assert snapshot["notes"] == ["the episodes that were open when the run was interrupted are lost: it has no state"]


def test_the_episodes_of_an_actors_last_life_are_lost_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = (0, False, {}), (1, True, {"lost_episodes": 5}), (1, False, {})  # the last one had left before
    for restarts, revived, lost in lives:
        context = Context("actor/0", 1, restarts, revived)
        monkeypatch.setattr("shoal.loops.actor.current", lambda context=context: context)
        metrics = Metrics()
        EnvRunner(cast(Any, ScriptedEnvs([[[1.0]]] * 5)), metrics).report.flush()
        assert metrics.snapshot()["counts"] == lost


def test_environments_that_are_lost_are_all_counted_and_the_first_few_told_of() -> None:
    class Losing(ScriptedEnvs):
        def losses(self) -> list[str]:
            made.append(len(made))
            return [f"number {len(made)} was ended", f"number {len(made)} hung"]

    made: list[int] = []
    metrics = Metrics()
    runner = EnvRunner(cast(Any, Losing([[[1.0]]])), metrics)
    for _ in range(4):
        runner.end_of_block()
    runner.report.flush()
    assert metrics.snapshot()["counts"]["lost_environments"] == 8
    assert len(metrics.snapshot()["notes"]) == TOLD_LOSSES == 5
