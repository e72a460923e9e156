"""What a network's outputs mean: the action distribution of a space, and the head that gives its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.functional.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical
from shoal.nets.dense import orthogonal_

INITIAL_LOG_STD = -0.5  # in units of half the action range
LOG_STD_RANGE = (-5.0, 2.0)


def action_distribution(space: spaces.Space[Any]) -> Distribution:
    """The distribution over actions of a space, as they are stored: discrete ones counted from 0."""
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n))
        case spaces.MultiDiscrete():
            return MultiCategorical(tuple(space.nvec.flatten().tolist()), space.nvec.shape)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = space.low.flatten().astype(np.float64), space.high.flatten().astype(np.float64)
            bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
            low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
            return DiagonalGaussian(
                tuple(((low + high) / 2.0).tolist()), tuple(((high - low) / 2.0).tolist()), space.shape
            )
    raise UserError(f"The action space {space} is not supported: use Discrete, MultiDiscrete or a Box of floats.")


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Orthogonal weights and zero biases: the start from which policy gradients learn most reliably."""
    orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class LogStd(nn.Module):
    """[N, n] means → [N, 2n] Gaussian parameters with a log standard deviation that is learned but sees no state."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((count,), INITIAL_LOG_STD))

    def forward(self, mean: Tensor) -> Tensor:
        return torch.cat([mean, self.log_std.clamp(*LOG_STD_RANGE).expand_as(mean)], dim=-1)


class PolicyHead(nn.Module):
    """[N, inputs] features → [N, distribution.size] parameters."""

    def __init__(self, inputs: int, distribution: Distribution, state_dependent_std: bool = False) -> None:
        super().__init__()
        gaussian = isinstance(distribution, DiagonalGaussian)
        self.log_std: LogStd | None = None
        self.bounded_std = gaussian and state_dependent_std
        outputs = distribution.size
        if gaussian and not state_dependent_std:
            outputs //= 2
            self.log_std = LogStd(outputs)
        self.linear = orthogonal(nn.Linear(inputs, outputs), 0.01)
        if self.bounded_std:
            with torch.no_grad():
                self.linear.bias[outputs // 2 :] = INITIAL_LOG_STD

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.linear(features)
        if self.log_std is not None:
            outputs = self.log_std(outputs)
        elif self.bounded_std:
            mean, log_std = outputs.chunk(2, dim=-1)
            outputs = torch.cat([mean, log_std.clamp(*LOG_STD_RANGE)], dim=-1)
        return outputs
