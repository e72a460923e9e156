"""Factories that the tests name as `sample_envs:...`: every kind of space, and broken promises."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from counting_envs import Counting, CountingVector

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
NESTED = spaces.Dict(
    {
        "position": spaces.Box(-np.inf, np.inf, (2,), np.float64),
        "parts": spaces.Tuple((spaces.Discrete(5), spaces.Dict({"switches": spaces.MultiBinary(3)}))),
        "image": spaces.Box(0, 255, (4, 4), np.uint8),
        "choices": spaces.MultiDiscrete([2, 3]),
    }
)


class Sampled(gymnasium.Env[Any, Any]):
    """Observes samples of a space and remembers the actions it was given; ends after `length` steps."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any], length: int = 5) -> None:
        self.observation_space, self.action_space = observation, action
        self._length = length
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        ACTIONS.append(action)
        self._time += 1
        return self.observation_space.sample(), 1.0, self._time >= self._length, False, {}


ACTIONS: list[Any] = []


def sampled(observation: spaces.Space[Any] = BOX, action: spaces.Space[Any] | None = None, **options: Any) -> Sampled:
    return Sampled(observation, action or spaces.Discrete(2), **options)


class Broken(Sampled):
    """Steps are right until `at`, then `change(observation, reward)` says what comes instead."""

    def __init__(self, change: Any, at: int = 3, observation: spaces.Space[Any] = BOX) -> None:
        super().__init__(observation, spaces.Discrete(2), length=1000)
        self._change, self._at = change, at

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._time >= self._at:
            observation, reward = self._change(observation, reward)
        return observation, reward, terminated, truncated, info


class BrokenReset(Sampled):
    """The first observation is `value`."""

    def __init__(self, value: Any, observation: spaces.Space[Any] = BOX) -> None:
        super().__init__(observation, spaces.Discrete(2))
        self._value = value

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**options)
        return self._value, {}


def same_step(count: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Counting] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def fixed_vector() -> CountingVector:
    return CountingVector(4)


def not_an_environment() -> str:
    return "nothing"


class Careless(CountingVector):
    """Counts rewards and ends on reset steps too, as some vectors do."""

    def step(self, actions: Any) -> Any:
        resets = self._terminated | self._truncated
        observation, reward, terminated, truncated, info = super().step(actions)
        return observation, np.where(resets, 7.0, reward), terminated | resets, truncated, info


class Shrinking(CountingVector):
    """Its second step returns one number per environment instead of three."""

    _steps = 0

    def step(self, actions: Any) -> Any:
        observation, *rest = super().step(actions)
        self._steps += 1
        return observation[:, :1] if self._steps == 2 else observation, *rest


def careless(count: int) -> Careless:
    return Careless(count)


def seeded(seed: int = -1) -> Counting:
    environment = Counting()
    SEEDS.append(seed)
    return environment


SEEDS: list[int] = []
