"""Your own environment, network and adder for R2D2, each a factory that `r2d2_remote_actors.py` names.

The task cannot be done without memory: a cue is shown once, and asked for five steps later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dm_env
import numpy as np
import torch
from dm_env import specs
from torch import Tensor, nn

from shoal.replay import Appended, Spans
from shoal.replay.views import Whole

STEPS = 5  # from the cue to the question


class Recall(dm_env.Environment):
    """Shows one of two cues at first, then nothing; the last action is worth 1 if it names the cue, else -1."""

    def __init__(self, seed: int | None) -> None:
        self.random = np.random.default_rng(seed)
        self.cue = self.step_number = 0

    def reset(self) -> dm_env.TimeStep:
        self.cue, self.step_number = int(self.random.integers(2)), 0
        return dm_env.restart(self.observe())

    def step(self, action: int) -> dm_env.TimeStep:
        self.step_number += 1
        if self.step_number == STEPS:
            return dm_env.termination(1.0 if action == self.cue else -1.0, self.observe())
        return dm_env.transition(0.0, self.observe())

    def observe(self) -> np.ndarray:
        seen = np.zeros(3, np.float32)
        seen[2] = self.step_number / STEPS
        if self.step_number == 0:
            seen[self.cue] = 1.0
        return seen

    def observation_spec(self) -> specs.Array:
        return specs.BoundedArray((3,), np.float32, 0.0, 1.0, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="action")


def make_environment(seed: int | None = None) -> dm_env.Environment:
    return Recall(seed)


class Network(nn.Module):
    """One step in time: (observation, previous action as a one-hot vector, previous reward, state) → (q, state)."""

    def __init__(self, observations: int, actions: int, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.core = nn.GRUCell(observations + actions + 1, width)
        self.q = nn.Linear(width, actions)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"memory": torch.zeros(count, self.width)}

    def forward(
        self, observation: Tensor, action: Tensor, reward: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        seen = torch.cat([observation, action, reward.unsqueeze(-1)], -1)
        memory = self.core(seen, state["memory"])
        return self.q(memory), {"memory": memory}


def make_network(observation_space: Any, action_space: Any) -> nn.Module:
    return Network(observation_space.shape[0], int(action_space.n))


@dataclass(frozen=True)
class WholeEpisodes:
    """The adder: an episode of up to `rows - 1` steps, with its final observation, is one item of the replay."""

    rows: int

    @property
    def view(self) -> Whole:
        return Whole(self.rows, masked=True, bootstrap=True)  # shorter ones are padded and masked

    def spans(self, block: Appended) -> Spans:
        row, environment = np.nonzero(~block.valid)  # where episodes end: their final observations
        length = block.position[row, environment] + 1
        fits = length <= self.rows
        row, environment, length = row[fits], environment[fits], length[fits]
        return Spans(environment, block.first_row + row + 1 - length, length, np.zeros_like(length))


def make_adder(config: Any) -> WholeEpisodes:
    return WholeEpisodes(config.length + 1)
