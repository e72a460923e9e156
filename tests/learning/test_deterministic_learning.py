"""D4PG and Ape-X DPG reach the returns that their pages promise: greedy, confirmed on fresh episodes, seeds named.

Times are for two cores that have nothing else to do.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from shoal.algorithms import apex_dpg, d4pg
from shoal.experiment.options import Result
from shoal.experiment.training import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * 3600)]

SWINGERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "d4pg categorical": (d4pg, {"critic": "categorical"}),
    "d4pg quantile": (d4pg, {"critic": "quantile"}),
    "apex_dpg": (apex_dpg, {}),
}


def results(cfg: Any, seeds: range, target: float, seconds: float, folder: Path) -> list[Result]:
    return [
        train(
            cfg,
            quiet=True,
            seed=seed,
            stop_return=target,
            stop_seconds=seconds,
            run_dir=str(folder / str(seed)),
        )
        for seed in seeds
    ]


@pytest.mark.parametrize("case", SWINGERS)
def test_it_swings_up_the_pendulum_with_nine_of_ten_seeds_within_a_minute_as_a_rule(case: str, tmp_path: Path) -> None:
    algorithm, options = SWINGERS[case]
    found = results(algorithm.Config(env="Pendulum-v1", **options), range(10), -200.0, 180.0, tmp_path)
    reached = {result.seed: result.seconds_to_target for result in found if result.reached}
    assert len(reached) >= 9, f"reached, after seconds: {reached}"
    assert median(result.seconds_to_target or 180.0 for result in found) < 60.0, f"after seconds: {reached}"


def test_d4pg_makes_the_cheetah_run_with_two_of_three_seeds_within_half_an_hour(tmp_path: Path) -> None:
    found = results(d4pg.Config(env="HalfCheetah-v5"), range(3), 2000.0, 1800.0, tmp_path)
    reached = {result.seed: result.seconds_to_target for result in found if result.reached}
    assert len(reached) >= 2, f"reached, after seconds: {reached}"
