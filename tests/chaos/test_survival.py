"""Processes of a run are killed, then stopped, at random, and it reaches its return all the same.

`SHOAL_SURVIVAL_SECONDS` says for how long each (30 s by default; five minutes are the proof).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from survival import CASES, survive

SECONDS = float(os.environ.get("SHOAL_SURVIVAL_SECONDS", "30"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 900)]


def survives(case: str, runtime: str, directory: Path) -> None:
    outcome = survive(case, directory, runtime=runtime, kill_seconds=SECONDS, stop_seconds=SECONDS, every=7.5)
    assert outcome.best >= 475.0, outcome.told
    assert outcome.summary["restarts"] >= len(outcome.losses) > 0
    assert "Traceback" not in outcome.told


@pytest.mark.parametrize("case", CASES)
def test_whoever_is_killed_or_stopped_the_task_is_learned(case: str, tmp_path: Path) -> None:
    survives(case, "local", tmp_path)


@pytest.mark.ray
@pytest.mark.parametrize("case", ["impala", "apex_dqn"])
def test_whoever_is_killed_or_stopped_on_ray_the_task_is_learned(case: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    survives(case, "ray", tmp_path)
