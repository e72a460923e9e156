"""Running statistics as buffers of a network: published with its weights, so that whoever acts uses the same ones.

Observations are normalised inside the network, rewards by the learner; what is stored stays raw. Statistics grow once
per version, by what all learners have seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.functional.normalisation import Statistics, from_sums, masked_sums, merge, normalise
from shoal.functional.returns import backward_recurrence
from shoal.nets.encoder import is_image, nest

LIMIT = 10.0  # what is normalised is clipped to ± this
EPSILON = 1e-8  # added to variances
Total = Callable[[Tensor], Tensor]  # the sum over all learners


class Running(nn.Module):
    """Mean, variance and number of the rows seen so far: 0, 1 and 0 before there are any."""

    mean: Tensor
    variance: Tensor
    rows: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64))

    @property
    def statistics(self) -> Statistics:
        return Statistics(self.mean, self.variance, self.rows)

    def sums(self, x: Tensor, valid: Tensor) -> Tensor:
        """What `merge` needs of x [T, B, ...], flat; valid bool [T, B]."""
        return masked_sums(x, valid, self.mean).flatten()

    def merge(self, sums: Tensor) -> None:
        """Add the rows behind `sums`; rows that are not finite would spoil all that come after and are left out."""
        if not torch.isfinite(sums).all():
            return
        merged = merge(self.statistics, from_sums(sums.view(3, *self.mean.shape), self.mean))
        for own, new in zip(self.statistics, merged):
            own.copy_(new)


class ObservationNormalizer(nn.Module):
    """Gives vectors of floats in an observation mean 0 and variance 1; images and whole numbers stay as they are."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.space = space
        parts = tree.flatten(_shapes(space), "observation")
        self.names = [name for name, shape in parts.items() if shape is not None]
        self.parts = nn.ModuleList([Running(tuple(parts[name])) for name in self.names])

    def forward(self, observation: Any) -> Any:
        """Any leading axes, nested as the space."""
        flat = tree.flatten(observation, "observation")
        for name, part in zip(self.names, self.parts):
            flat[name] = normalise(flat[name].float(), cast(Running, part).statistics, EPSILON).clamp(-LIMIT, LIMIT)
        return nest(self.space, flat)

    def update(self, observation: Any, valid: Tensor, total: Total) -> None:
        """Add observations [T, B, ...]; valid bool [T, B]."""
        flat = tree.flatten(observation, "observation")
        for name, part in zip(self.names, self.parts):
            running = cast(Running, part)
            running.merge(total(running.sums(flat[name], valid)))


class RewardNormalizer(Running):
    """Divides rewards by the standard deviation of discounted returns, as far as these can be seen within an unroll."""

    def update(self, rewards: Tensor, discounts: Tensor, valid: Tensor, total: Total) -> None:
        """Add an unroll, all [T, B]; discounts γ·(1 − terminated)."""
        returns = backward_recurrence(torch.where(valid, rewards, 0.0), torch.where(valid, discounts, 0.0))
        self.merge(total(self.sums(returns, valid)))

    def forward(self, rewards: Tensor) -> Tensor:
        scale = torch.rsqrt(self.variance + EPSILON).to(rewards.dtype)
        return (rewards * scale).clamp(-LIMIT, LIMIT)


def _shapes(space: spaces.Space[Any]) -> Any:
    """The shape of each part that is a vector of floats, None for the others, nested as the space in dicts."""
    if isinstance(space, spaces.Dict):
        return {key: _shapes(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(place): _shapes(part) for place, part in enumerate(space.spaces)}
    floats = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and not is_image(space)
    return np.array(space.shape, np.int64) if floats else None
