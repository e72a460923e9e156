"""One seed of every page learns a small task in seconds: a stated return, judged by the greedy evaluator.

That they learn more, over seeds and harder tasks, is `bench.learning` (make test-learning).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logged_data import dataset
from shoal.experiment.training import train
from shoal.runs import registry

CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1",
    "stop_return": 300.0,
}  # of 500; knowing nothing: 9 to 22
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "stop_return": -350.0}  # knowing nothing: -1,200
# Of a few minutes' settings: what CQL of the paper's size computes takes hours on two cores.
QUICK: dict[str, Any] = {"actor_hidden": (64, 64), "critic_hidden": (64, 64), "actor_rate": 1e-3, "critic_rate": 1e-3}
QUICK_CQL = QUICK | {"batch": 64, "drawn_actions": 3}
FROM_CARTPOLE = {**CARTPOLE, "data": {"episodes": 60, "steps": 200, "guided": 0.7}}
FROM_PENDULUM = {**PENDULUM, "data": {"episodes": 40, "steps": 200, "guided": 0.7}}
TASKS = {
    "a3c": CARTPOLE,
    "apex_dpg": PENDULUM,
    "apex_dqn": CARTPOLE,
    "appo": CARTPOLE,
    "bc": FROM_CARTPOLE,
    "cql": FROM_PENDULUM | {"options": QUICK_CQL},
    "d4pg": PENDULUM,
    "discrete_cql": FROM_CARTPOLE,
    "impala": CARTPOLE,
    "iql": FROM_PENDULUM,
    "ppo": CARTPOLE,
    "r2d2": CARTPOLE,
    "sac": PENDULUM,
    "td3": PENDULUM,
    "td3_bc": FROM_PENDULUM,
}


def test_every_page_has_a_task() -> None:
    assert sorted(TASKS) == sorted(registry.names())


@pytest.mark.parametrize("algorithm", TASKS)
def test_a_page_learns(algorithm: str, tmp_path: Path) -> None:
    options = dict(TASKS[algorithm])
    env, data, chosen = (options.pop(name, None) for name in ("env", "data", "options"))
    logged = {"data": dataset(env, **data)} if data else {}
    cfg = registry.load(algorithm).Config(env=env, **logged, **(chosen or {}))
    result = train(cfg, quiet=True, seed=1, stop_seconds=150.0, run_dir=str(tmp_path / "run"), **options)
    assert result.reached, f"{algorithm} stood at {result.eval_return} after {result.train_seconds} s"
