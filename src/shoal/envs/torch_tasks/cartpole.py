"""Gymnasium's CartPole-v1, many at once, as tensors of any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.envs.torch_tasks.task import Numbers, TorchTask

FARTHEST, STEEPEST = 2.4, 12 * 2 * np.pi / 360  # position and angle beyond which an episode terminates
LARGEST = np.array([2 * FARTHEST, np.inf, 2 * STEEPEST, np.inf], np.float32)


class CartPoles(TorchTask):
    """A state is [B, 4]: position, speed, angle, turning."""

    single_observation_space = spaces.Box(-LARGEST, LARGEST)
    single_action_space = spaces.Discrete(2)
    usual_limit, drawn_as = 500, "CartPole-v1"

    def begin(self) -> Numbers:
        return {"state": self.uniform(-0.05, 0.05, 4)}

    def move(self, state: Numbers, action: Tensor) -> tuple[Numbers, Tensor, Tensor]:
        after = pushed(state["state"], action)
        x, _, angle, _ = after.unbind(1)
        return {"state": after}, torch.ones_like(x), (x.abs() > FARTHEST) | (angle.abs() > STEEPEST)

    def see(self, state: Numbers) -> Tensor:
        return state["state"].float()

    def show(self, state: Numbers, picture_of: Any) -> None:
        picture_of.state = tuple(state["state"][0].tolist())


def pushed(state: Tensor, action: Tensor) -> Tensor:
    """States [B, 4] after 0.02 seconds of a push to the left (0) or to the right (1)."""
    _, speed, angle, turning = state.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    push = (20.0 * action - 10.0 + 0.05 * turning.square() * sine) / 1.1
    twist = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
    gained = push - 0.05 * twist * cosine / 1.1
    return state + 0.02 * torch.stack([speed, gained, turning, twist], 1)
