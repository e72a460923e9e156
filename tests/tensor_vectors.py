"""A vector of environments of tensors, in either autoreset, whose observations tell where it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from network_options import SpacePair
from shoal.envs.tensor_vector import Autoreset

COUNT = 3
SPACES = SpacePair(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3))


class Counting:
    """Environment i has episodes of i + 2 steps, of which every second one is truncated; it sees (episode, step)."""

    def __init__(self, autoreset: Autoreset, count: int = COUNT) -> None:
        self.num_envs, self._same = count, autoreset == "same_step"
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP if self._same else AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = SPACES.observation_space, SPACES.action_space
        self._length = torch.arange(count) + 2

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        self._episode, self._step = (torch.zeros(self.num_envs, dtype=torch.int64) for _ in range(2))
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._seen(), {}

    def step(self, action: Tensor, /) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        resets = self._ended if not self._same else torch.zeros_like(self._ended)
        self._begin(resets)
        self._step = torch.where(resets, 0, self._step + 1)
        self._ended = ended = (self._step == self._length) & ~resets
        truncated = ended & (self._episode % 2 == 0)
        final, info = self._seen(), {}
        reward = torch.where(resets, 7.0, action.float())  # what a reset gives counts for nothing
        if self._same:
            self._begin(ended)
            info = {"final_obs": final}
        return self._seen(), reward, ended & ~truncated, truncated, info

    def _begin(self, where: Tensor) -> None:
        self._episode = self._episode + where.long()
        self._step = torch.where(where, 0, self._step)

    def _seen(self) -> Tensor:
        return torch.stack([self._episode, self._step], 1).float()
