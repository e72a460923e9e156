"""PPO and APPO reach the returns that their pages promise: greedy, confirmed on fresh episodes, seeds named.

Times are for two cores that have nothing else to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms import appo, impala, ppo
from shoal.experiment.training import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LONGER = {"envs_per_actor": 32, "unroll": 64}  # where what matters lies further ahead than in CartPole
LANDER = {"env": "LunarLander-v3", "gamma": 0.999, "lambda_": 0.98, "learning_rate": 1e-3, **LONGER}
HIDDEN = {"env": "shoal/CartPoleHidden-v0", "lstm": 64, **LONGER}
CASES: dict[str, tuple[Any, dict[str, Any], float, float, int, range]] = {
    # algorithm, options, return, seconds, how many of these seeds
    "ppo CartPole": (ppo, {"env": "CartPole-v1"}, 475.0, 60.0, 10, range(10)),
    "ppo LunarLander": (ppo, LANDER, 200.0, 300.0, 4, range(5)),
    "ppo Pendulum": (ppo, {"env": "Pendulum-v1"}, -250.0, 180.0, 4, range(5)),
    "ppo HalfCheetah": (ppo, {"env": "HalfCheetah-v5"}, 2000.0, 600.0, 2, range(3)),
    "ppo hidden CartPole": (ppo, HIDDEN, 400.0, 300.0, 4, range(5)),
    "ppo two learners": (ppo, {"env": "CartPole-v1", "learners": 2}, 475.0, 60.0, 4, range(5)),
    "appo CartPole": (appo, {"env": "CartPole-v1"}, 475.0, 60.0, 9, range(10)),
    "impala two learners": (impala, {"env": "CartPole-v1", "learners": 2}, 475.0, 60.0, 4, range(5)),
}


@pytest.mark.parametrize("case", CASES)
def test_it_reaches_the_return_with_enough_seeds(case: str, tmp_path: Path) -> None:
    algorithm, options, target, seconds, least, seeds = CASES[case]
    results = [
        train(
            algorithm.Config(**options),
            quiet=True,
            seed=seed,
            stop_return=target,
            stop_seconds=seconds,
            run_dir=str(tmp_path / str(seed)),
        )
        for seed in seeds
    ]
    reached = {result.seed: result.seconds_to_target for result in results if result.reached}
    assert len(reached) >= least, f"reached, after seconds: {reached}"
