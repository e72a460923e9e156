"""CartPole without velocities: a task that needs memory, since position and angle alone do not say where they go."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space

from shoal.types import Array

_SEEN = slice(0, 4, 2)  # of (position, velocity, angle, angular velocity)


class HiddenVelocity(gymnasium.ObservationWrapper[Array, Any, Array]):
    """Keeps the position and the angle of CartPole's observation."""

    def __init__(self, env: gymnasium.Env[Array, Any]) -> None:
        super().__init__(env)
        self.observation_space = _seen(env.observation_space)

    def observation(self, observation: Array) -> Array:
        return observation[_SEEN]


class CartPoleHiddenVector(CartPoleVectorEnv):
    """Gymnasium's vectorised CartPole with the velocities left out."""

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self.single_observation_space = _seen(self.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
        observation, info = super().reset(**options)
        return observation[:, _SEEN], info

    def step(self, action: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation[:, _SEEN], reward, terminated, truncated, info


def cartpole_hidden(**options: Any) -> gymnasium.Env[Array, Any]:
    return HiddenVelocity(CartPoleEnv(**options))


def _seen(space: Any) -> spaces.Box:
    return spaces.Box(space.low[_SEEN], space.high[_SEEN], dtype=np.float32)
