"""Processes of a run are killed, then stopped, at random, and it reaches its return all the same.

`SHOAL_SURVIVAL_SECONDS` says for how long each (30 s by default; five minutes are the proof).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from survival import CASES, GOALS, HANG_SECONDS, Survival, survive

SECONDS = float(os.environ.get("SHOAL_SURVIVAL_SECONDS", "30"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 900)]


def survives(case: str, runtime: str, directory: Path) -> None:
    outcome = survive(case, directory, runtime=runtime, kill_seconds=SECONDS, stop_seconds=SECONDS, every=7.5)
    assert outcome.best >= GOALS[case], outcome.told
    assert outcome.summary["restarts"] >= len(outcome.losses) > 0
    assert "Traceback" not in outcome.told


@pytest.mark.parametrize("case", CASES)
def test_whoever_is_killed_or_stopped_the_task_is_learned(case: str, tmp_path: Path) -> None:
    survives(case, "local", tmp_path)


def test_a_closed_lid_costs_nothing(tmp_path: Path) -> None:
    """Everything stands still for longer than a node may hang, and goes on."""
    run = Survival(CASES["impala"], tmp_path, runtime="local", seed=0)
    try:
        run.await_learning()
        time.sleep(2.0)
        run.close_lid(3 * HANG_SECONDS)
        before = len(run.rows("progress"))
        while len(run.rows("progress")) < before + 2 * HANG_SECONDS:  # a row a second
            time.sleep(0.5)
        learned = [row["counts"]["learner_steps"] for row in run.rows("progress")[before - 1 :]]
        assert learned[-1] > learned[0], "it goes on learning"
        assert not run.rows("hang")
        assert not run.rows("loss")
        assert run.finish(0.0).summary["restarts"] == 0
    finally:
        run.close()


@pytest.mark.ray
@pytest.mark.parametrize("case", ["impala", "apex_dqn"])
def test_whoever_is_killed_or_stopped_on_ray_the_task_is_learned(case: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    survives(case, "ray", tmp_path)
