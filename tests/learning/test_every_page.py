"""One seed of every page learns a small task in seconds: a stated return, judged by the greedy evaluator.

That they learn more, over seeds and harder tasks, is `bench.learning` (make test-learning).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.experiment.training import train
from shoal.runs import registry

CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1",
    "stop_return": 300.0,
}  # of 500; knowing nothing: 9 to 22
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "stop_return": -350.0}  # knowing nothing: -1,200
TASKS = {
    "a3c": CARTPOLE,
    "apex_dpg": PENDULUM,
    "apex_dqn": CARTPOLE,
    "appo": CARTPOLE,
    "d4pg": PENDULUM,
    "impala": CARTPOLE,
    "ppo": CARTPOLE,
    "r2d2": CARTPOLE,
    "sac": PENDULUM,
    "td3": PENDULUM,
}


def test_every_page_has_a_task() -> None:
    assert sorted(TASKS) == sorted(registry.names())


@pytest.mark.parametrize("algorithm", TASKS)
def test_a_page_learns(algorithm: str, tmp_path: Path) -> None:
    options = dict(TASKS[algorithm])
    cfg = registry.load(algorithm).Config(env=options.pop("env"))
    result = train(cfg, quiet=True, seed=1, stop_seconds=150.0, run_dir=str(tmp_path / "run"), **options)
    assert result.reached, f"{algorithm} stood at {result.eval_return} after {result.train_seconds} s"
