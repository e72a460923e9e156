"""R2D2 reaches the returns that its page promises, where a network without memory cannot; seeds named.

Times are for two cores that have nothing else to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms import apex_dqn, r2d2
from shoal.experiment.training import Result, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

HIDDEN = {"env": "shoal/CartPoleHidden-v0"}
RECALL = {"env": "shoal/Recall-v0"}
CASES: dict[str, tuple[dict[str, Any], float, float, int, range]] = {
    # options, return, seconds, how many of these seeds
    "hidden CartPole": (HIDDEN, 400.0, 360.0, 4, range(1, 6)),
    "recall": (RECALL, 0.95, 120.0, 4, range(1, 6)),
    "central inference": (HIDDEN | {"inference": "central"}, 400.0, 360.0, 2, range(1, 4)),
}


def run(cfg: Any, seed: int, target: float, seconds: float, folder: Path) -> Result:
    return train(cfg, quiet=True, seed=seed, stop_return=target, stop_seconds=seconds, run_dir=str(folder / str(seed)))


@pytest.mark.parametrize("case", CASES)
def test_it_reaches_the_return_with_enough_seeds(case: str, tmp_path: Path) -> None:
    options, target, seconds, least, seeds = CASES[case]
    results = [run(r2d2.Config(**options), seed, target, seconds, tmp_path) for seed in seeds]
    reached = {result.seed: result.seconds_to_target for result in results if result.reached}
    assert len(reached) >= least, f"reached, after seconds: {reached}"


@pytest.mark.parametrize(
    ("options", "bound", "seconds"), [(HIDDEN, 200.0, 360.0), (RECALL, 0.5, 60.0)], ids=["hidden CartPole", "recall"]
)
def test_without_memory_the_same_tasks_are_out_of_reach(
    options: dict[str, Any], bound: float, seconds: float, tmp_path: Path
) -> None:
    assert not run(apex_dqn.Config(**options), 1, bound, seconds, tmp_path).reached
