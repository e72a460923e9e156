"""The game of `shoal/Catch-v0` on 84 × 84 pixels, many at once, as tensors of any device."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.envs.tasks.catch import SIDE
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.torch_tasks.task import Numbers, TorchTask
from shoal.errors import UserError


class Catches(TorchTask):
    """A ball falls one cell a step through a grid of `size` × `size`, a paddle in the last row moves left, stays or
    moves right. The episode ends when the ball is down: with 1 when it was caught, −1 when not."""

    single_observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    single_action_space = spaces.Discrete(3)

    def __init__(
        self,
        count: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        autoreset: Autoreset = "next_step",
        size: int = 6,
    ) -> None:
        if not 2 <= size <= SIDE:
            raise UserError(f"the grid of torch/Catch-v0 has from 2 to {SIDE} cells a side, not {size}.")
        super().__init__(count, seed, device, autoreset)
        self._size = size
        cell = torch.arange(SIDE, device=self.device) * size // SIDE  # of each pixel
        edges = torch.arange(size + 1) * SIDE // size
        for number in range(size):  # as the numpy version cuts them, where the side is no multiple
            cell[int(edges[number]) : int(edges[number + 1])] = number
        self._cell = cell

    def begin(self) -> Numbers:
        column, paddle = (self.uniform(0, self._size, 2) // 1).long().clamp_(max=self._size - 1).unbind(1)
        return {"row": torch.zeros_like(column), "column": column, "paddle": paddle}

    def move(self, state: Numbers, action: Tensor) -> tuple[Numbers, Tensor, Tensor]:
        paddle = (state["paddle"] + action - 1).clamp_(0, self._size - 1)
        after = {"row": state["row"] + 1, "column": state["column"], "paddle": paddle}
        down = after["row"] == self._size - 1
        caught = torch.where(paddle == after["column"], 1.0, -1.0)
        return after, caught * down, down

    def see(self, state: Numbers) -> Tensor:
        """The ball in 255, the paddle in 127."""
        row, column, paddle = (state[name].unsqueeze(1) == self._cell for name in ("row", "column", "paddle"))
        ball = row.unsqueeze(2) & column.unsqueeze(1)
        bar = (self._cell == self._size - 1).unsqueeze(1) & paddle.unsqueeze(1)
        return ball.to(torch.uint8) * 255 | bar.to(torch.uint8) * 127
