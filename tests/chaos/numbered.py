"""An algorithm that learns nothing: its environments number their rows, and its learner writes down those it is given.

Every observation is (which environment, its number), and every observation is one row.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.algorithms.impala import PRESETS, Config, Impala, make_policy
from shoal.envs import EnvSpec
from shoal.learning import Update
from shoal.loops.wiring import Settings, rollout_program
from shoal.program import Program
from shoal.replay import Table

__all__ = ["PRESETS", "Config", "Numbered", "make_policy", "program", "read_rows"]

FILE = "SHOAL_NUMBERED_ROWS"  # where the learner writes, as a variable of the environment
EXACT = 1 << 24  # whole numbers that a float32 can hold
EPISODE = 200  # steps


class Numbered(gym.Env[Any, Any]):
    """Its own number is drawn when it is made, so that an actor that comes back has other ones."""

    observation_space = gym.spaces.Box(0.0, float(EXACT), (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._identity, self._rows, self._left = int.from_bytes(os.urandom(3), "big"), 0, EPISODE

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = EPISODE
        return self._row(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._row(), 1.0, False, self._left == 0, {}

    def _row(self) -> Any:
        self._rows += 1
        return np.array([self._identity, self._rows], np.float32)


class WritesDown(Impala):
    """Slower than the actors, so that its queue is full."""

    def update(self, batch: Any) -> Update:
        rows = batch["observation"][:-1].numpy().astype(np.int64)
        out = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(out, rows.tobytes())  # at once: a kill comes before or after it
        finally:
            os.close(out)
        time.sleep(0.01)
        return Update({})


def read_rows(file: Path) -> np.ndarray[Any, Any]:
    """[rows, 2]: what the learner was given, in its order."""
    return np.frombuffer(file.read_bytes(), np.int64).reshape(-1, 2)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    build = partial(rollout_program, learner=WritesDown, policy=make_policy)
    return build(cfg, env, settings, table=Table.queue("rollouts", cfg.queue), batch=cfg.batch)
