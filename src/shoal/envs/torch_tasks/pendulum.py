"""Gymnasium's Pendulum-v1, many at once, as tensors of any device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.envs.torch_tasks.task import Numbers, TorchTask

FASTEST, STRONGEST = 8.0, 2.0  # turning and torque
LARGEST = np.array([1.0, 1.0, FASTEST], np.float32)


class Pendulums(TorchTask):
    """A state is an angle [B], 0 where it stands upright, and how fast it turns [B]."""

    single_observation_space = spaces.Box(-LARGEST, LARGEST)
    single_action_space = spaces.Box(-STRONGEST, STRONGEST, (1,))
    usual_limit, drawn_as = 200, "Pendulum-v1"

    def begin(self) -> Numbers:
        return {"angle": self.uniform(-math.pi, math.pi), "turning": self.uniform(-1.0, 1.0)}

    def move(self, state: Numbers, action: Tensor) -> tuple[Numbers, Tensor, Tensor]:
        angle, turning = state["angle"], state["turning"]
        torque = action[:, 0].clamp(-STRONGEST, STRONGEST)
        off = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = off.square() + 0.1 * turning.square() + 0.001 * torque.square()
        turning = (turning + 0.05 * (15.0 * angle.sin() + 3.0 * torque)).clamp(-FASTEST, FASTEST)
        after = {"angle": angle + 0.05 * turning, "turning": turning}
        return after, -cost, torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def see(self, state: Numbers) -> Tensor:
        angle = state["angle"]
        return torch.stack([angle.cos(), angle.sin(), state["turning"]], 1).float()

    def show(self, state: Numbers, picture_of: Any) -> None:
        picture_of.state, picture_of.last_u = np.array([float(state[name]) for name in ("angle", "turning")]), None
