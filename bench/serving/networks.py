"""The networks that policy servers are compared with, in plain torch: 2 × 64 on four numbers, and the Nature CNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """Bytes as numbers from 0 to 1."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float() / 255


def make_network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).eval()
    return nn.Sequential(
        Scaled(),
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 6),
    ).eval()
