"""Environments and networks, each with one thing that a doctor should find."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn


class Well(gymnasium.Env[Any, Any]):
    """Nothing is wrong with it: its state can be saved and its episodes end."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)
    steps, last = 0, 12

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.see(), self.reward(), self.steps >= self.last, False, {}

    def see(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)

    def reward(self) -> float:
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Stateless(Well):
    state_dict = None  # type: ignore[assignment]


class Forgetful(Well):
    """Gives a state that leaves out what its steps depend on."""

    def see(self) -> Any:
        return np.full(3, self.steps / self.last, np.float32)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Unseeded(Well):
    drawn = np.random.default_rng()

    def see(self) -> Any:
        return self.drawn.uniform(-1.0, 1.0, 3).astype(np.float32)


class Wide(Well):
    def see(self) -> Any:
        return 500.0 * super().see().astype(np.float64)

    def reward(self) -> float:
        return 300.0


class Endless(Well):
    last = 10**9

    def reward(self) -> float:
        return 0.0


class Frozen(Well):
    def see(self) -> Any:
        return np.zeros(3, np.float32)


class Spoiled(Well):
    def see(self) -> Any:
        seen = super().see()
        seen[1] = np.nan if self.steps == 9 else seen[1]
        return seen


class Later(Well):
    """Later than it is tried before a run."""

    made = 0

    def reward(self) -> float:
        self.made += 1
        if self.made == 50:
            self.end()
        return 1.0

    def end(self) -> None:
        raise NotImplementedError


class Exits(Later):
    def end(self) -> None:
        os._exit(7)


class Hangs(Later):
    def end(self) -> None:
        time.sleep(1000.0)


class Nested(Well):
    observation_space = spaces.Dict(
        {"camera": spaces.Box(0.0, 255.0, (20, 20), np.float32), "mode": spaces.Discrete(3)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def see(self) -> Any:
        return {"camera": self.np_random.uniform(0, 255, (20, 20)).astype(np.float32), "mode": 1}


class FloatCamera(Well):
    """Images, for which convolutions are built, and which need four times the memory of bytes."""

    observation_space = spaces.Box(0.0, 1.0, (20, 20, 3), np.float32)

    def see(self) -> Any:
        return self.np_random.uniform(0, 1, (20, 20, 3)).astype(np.float32)


class Vector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """With NEXT_STEP autoreset, unless it pays for the step that only resets, or ends an episode with it."""

    metadata: Any = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, count: int, paid: float = 0.0, twice: bool = False) -> None:
        self.num_envs, self.steps, self.paid, self.twice = count, 0, paid, twice
        self.single_observation_space = Well.observation_space
        self.single_action_space = Well.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        resets = self.steps % 5 == 0
        seen = np.full((self.num_envs, 3), (self.steps % 5) / 5, np.float32)
        reward = np.full(self.num_envs, self.paid if resets else 1.0)
        ends = self.steps % 5 == 4 or (resets and self.twice)
        return seen, reward, np.full(self.num_envs, ends), np.zeros(self.num_envs, np.bool_), {}


class Network(nn.Module):
    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(inputs, 8), nn.Linear(8, actions), nn.Linear(8, 1)

    def forward(self, observation: Any) -> Any:
        hidden = torch.tanh(self.body(observation))
        return self.policy(hidden), self.value(hidden)


class Idle(Network):
    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__(inputs, actions)
        self.spare = nn.Linear(3, 3)


class Infinite(Network):
    """Finite forward, a gradient that is not: the root of 0."""

    def forward(self, observation: Any) -> Any:
        policy, value = super().forward(observation)
        return policy + 0.0 * torch.sqrt(0.0 * policy), value


def network(observations: Any, actions: Any) -> nn.Module:
    return Network(observations.shape[0], int(actions.n))


def idle(observations: Any, actions: Any) -> nn.Module:
    return Idle(observations.shape[0], int(actions.n))


def infinite(observations: Any, actions: Any) -> nn.Module:
    return Infinite(observations.shape[0], int(actions.n))


def no_value(observations: Any, actions: Any) -> nn.Module:
    return nn.Linear(observations.shape[0], int(actions.n))
