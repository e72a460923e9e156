"""Run directories with networks that nothing was trained for: what is measured is the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.envs.describing import describe_here
from shoal.runs import records, registry
from shoal.runs.directory import RunDirectory
from shoal.runs.options import RunOptions


class Pixels(gymnasium.Env[Any, Any]):
    """Stacks of four frames, as they come."""

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((4, 84, 84), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((4, 84, 84), np.uint8), 0.0, False, False, {}


def make_run(path: Path, network: str) -> Path:
    """`mlp`: 2 × 64 for CartPole; `cnn`: the Nature CNN on four frames of 84 × 84."""
    page = registry.load("ppo")
    chosen: dict[str, Any] = (
        {"env": "CartPole-v1", "hidden": (64, 64)} if network == "mlp" else {"env": Pixels, "hidden": (512,)}
    )
    cfg = page.Config(**chosen)
    env = describe_here(cfg.env, None, "auto", None)
    made = RunDirectory.create(str(path), "ppo", "env", 0, print)
    record = records.record_of("ppo", cfg, env, RunOptions(seed=0))
    made.write_config(record)
    policy = page.make_policy(cfg, env, 0)
    made.write_weights(policy.state_dict()["weights"])
    made.close()
    return path
