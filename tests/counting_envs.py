"""Environments whose observations say where they come from, so that tests can prove what became of every step.

Name them as `counting_envs:counting` (single, stepped one after another) and
`counting_envs:counting_vector` (a native vector).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = npt.NDArray[Any]
End = Literal["terminated", "truncated"]

LENGTHS = (3, 1, 5, 2)
ENDS: tuple[End, ...] = ("terminated", "truncated", "truncated")


def episode_length(stream: int, episode: int, lengths: Sequence[int] = LENGTHS) -> int:
    return lengths[(stream + episode) % len(lengths)]


def episode_end(stream: int, episode: int, ends: Sequence[End] = ENDS) -> End:
    return ends[(stream + episode) % len(ends)]


def reward_of(episode: int, step: int) -> float:
    """The reward for acting on the observation (stream, episode, step): tells that observation from all others."""
    return 100.0 * episode + step


class Counting(gymnasium.Env[Array, Any]):
    """Observes (stream, episode, step); the stream's number is drawn from the seed.

    Episode number e of stream s has `lengths[(s + e) % len(lengths)]` steps and ends as `ends` says in the same way.
    `fail_at` makes the step of that number raise.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium reads it from the class

    def __init__(
        self, lengths: Sequence[int] = LENGTHS, ends: Sequence[End] = ENDS, actions: int = 3, fail_at: int | None = None
    ) -> None:
        self._lengths, self._ends, self._fail_at = tuple(lengths), tuple(ends), fail_at
        self.observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self._stream = 0
        self._episode = -1
        self._step = 0
        self._taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._stream = int(self.np_random.integers(1 << 20))
            self._episode = -1
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._taken += 1
        if self._taken == self._fail_at:
            raise RuntimeError(f"Counting was told to fail at step {self._fail_at}")
        reward = reward_of(self._episode, self._step)
        self._step += 1
        done = self._step >= episode_length(self._stream, self._episode, self._lengths)
        end = episode_end(self._stream, self._episode, self._ends)
        return self._observe(), reward, done and end == "terminated", done and end == "truncated", {}

    def _observe(self) -> Array:
        return np.array([self._stream, self._episode, self._step], np.float32)


class CountingVector(VectorEnv[Any, Any, Any]):
    """The same as a vector, with the environment's number as the stream's. It reuses its arrays from step to step."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium reads it from the class

    def __init__(
        self, num_envs: int, lengths: Sequence[int] = LENGTHS, ends: Sequence[End] = ENDS, actions: int = 3
    ) -> None:
        self._lengths = np.array(lengths)
        self._terminates = np.array([end == "terminated" for end in ends])
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Discrete(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._stream = np.arange(num_envs)
        self._episode = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._observation = np.zeros((num_envs, 3), np.float32)
        self._reward = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode = np.zeros_like(self._episode) if seed is not None else self._episode + 1
        self._step[:] = 0
        self._terminated[:] = self._truncated[:] = False
        return self._observe(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        again = self._terminated | self._truncated
        self._reward[:] = np.where(again, 0.0, 100.0 * self._episode + self._step)
        self._episode += again
        self._step[:] = np.where(again, 0, self._step + 1)
        place = self._stream + self._episode
        done = (self._step >= self._lengths[place % len(self._lengths)]) & ~again
        terminates = self._terminates[place % len(self._terminates)]
        self._terminated[:] = done & terminates
        self._truncated[:] = done & ~terminates
        return self._observe(), self._reward, self._terminated, self._truncated, {}

    def _observe(self) -> Array:
        self._observation[:] = np.stack([self._stream, self._episode, self._step], axis=1)
        return self._observation


def counting(**options: Any) -> Counting:
    return Counting(**options)


def counting_vector(count: int, **options: Any) -> CountingVector:
    return CountingVector(count, **options)
