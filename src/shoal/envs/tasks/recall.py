"""A task that only memory solves: a cue is shown once and asked for many steps later."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.envs.tasks.single import Single
from shoal.types import Array


class RecallVector(VectorEnv[Any, Any, Any]):
    """The first observation shows which of `cues` is meant, the one `delay` steps later asks.

    Observations are one-hot: the cue, nothing while waiting, or (the last entry) the question. The action taken on the
    question ends the episode, with reward 1 when it names the cue; actions before do nothing.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium reads it from the class

    def __init__(self, num_envs: int = 1, cues: int = 4, delay: int = 30) -> None:
        self.num_envs = num_envs
        self._cues = cues
        self._delay = delay
        self.single_observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.single_action_space = spaces.Discrete(cues)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._cue = np.zeros(num_envs, np.int64)
        self._time = np.zeros(num_envs, np.int64)
        self._done = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._done[:] = False
        self._begin(np.arange(self.num_envs))
        return self._observe(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        again = self._done
        asked = (self._time == self._delay) & ~again
        reward = (asked & (np.asarray(actions) == self._cue)).astype(np.float32)
        self._time += 1
        self._begin(again.nonzero()[0])
        self._done = asked
        return self._observe(), reward, asked.copy(), np.zeros(self.num_envs, np.bool_), {}

    def _begin(self, which: Array) -> None:
        self._cue[which] = self.np_random.integers(0, self._cues, len(which))
        self._time[which] = 0

    def _observe(self) -> Array:
        observation = np.zeros((self.num_envs, self._cues + 1), np.float32)
        (shown,) = (self._time == 0).nonzero()
        observation[shown, self._cue[shown]] = 1.0
        observation[:, -1] = self._time == self._delay
        return observation


class Recall(Single):
    """The same task as a single environment."""

    def __init__(self, cues: int = 4, delay: int = 30) -> None:
        super().__init__(RecallVector(1, cues, delay))
