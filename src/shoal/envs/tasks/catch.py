"""A small game on 84 × 84 pixels that a convolutional network learns in minutes: catch a ball that falls.

With `visible` rows it is a task of memory: the ball is drawn only while it is in the first rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.envs.tasks.single import Single
from shoal.types import Array

SIDE = 84  # pixels


class CatchVector(VectorEnv[Any, Any, Any]):
    """A ball falls one cell a step through a grid of `size` × `size`, a paddle in the last row moves left, stays or
    moves right. The episode ends when the ball is down: with 1 when it was caught, −1 when not."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium reads it from the class

    def __init__(self, num_envs: int = 1, size: int = 6, visible: int = 0) -> None:
        if not 2 <= size <= SIDE:
            raise ValueError(f"the grid has from 2 to {SIDE} cells a side, not {size}")
        self.num_envs = num_envs
        self._size = size
        self._visible = visible or size
        self.single_observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        edges = np.arange(size + 1) * SIDE // size
        self._cells = np.zeros((size, size, SIDE, SIDE), np.uint8)  # a picture of each cell
        for row in range(size):
            for column in range(size):
                self._cells[row, column, edges[row] : edges[row + 1], edges[column] : edges[column + 1]] = 255
        self._ball = np.zeros((2, num_envs), np.int64)  # row, column
        self._paddle = np.zeros(num_envs, np.int64)
        self._done = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._done = np.zeros(self.num_envs, np.bool_)
        self._begin(np.arange(self.num_envs))
        return self._draw(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        again = self._done
        self._paddle = np.clip(self._paddle + np.asarray(actions) - 1, 0, self._size - 1)
        self._ball[0] += 1
        self._begin(again.nonzero()[0])
        down = (self._ball[0] == self._size - 1) & ~again
        reward = np.where(down, np.where(self._paddle == self._ball[1], 1.0, -1.0), 0.0).astype(np.float32)
        self._done = down
        return self._draw(), reward, down.copy(), np.zeros(self.num_envs, np.bool_), {}

    def _begin(self, which: Array) -> None:
        self._ball[0, which] = 0
        self._ball[1, which] = self.np_random.integers(0, self._size, len(which))
        self._paddle[which] = self.np_random.integers(0, self._size, len(which))

    def _draw(self) -> Array:
        picture: Array = self._cells[self._size - 1, self._paddle] // 2
        (shown,) = (self._ball[0] < self._visible).nonzero()
        picture[shown] |= self._cells[self._ball[0, shown], self._ball[1, shown]]
        return picture


class Catch(Single):
    """The same game as a single environment."""

    def __init__(self, size: int = 6, visible: int = 0) -> None:
        super().__init__(CatchVector(1, size, visible))
