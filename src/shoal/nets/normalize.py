"""Statistics as buffers of a network: published with its weights, so that whoever acts uses the same ones.

Observations are normalised inside the network, rewards by the learner; what is stored stays raw. Running
statistics grow once per version, by what all learners have seen; those of logged data are there at once, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.functional.normalisation import Moments, from_sums, masked_sums, merge, normalise
from shoal.functional.returns import backward_recurrence, learned_rewards
from shoal.pixels import is_image
from shoal.types import Array

LIMIT = 10.0  # what is normalised is clipped to ± this
EPSILON = 1e-8  # added to variances
LEAST_DEVIATION = 1e-3  # added to deviations of data that is all known
Total = Callable[[Tensor], Tensor]  # the sum over all learners


class Spread(Protocol):
    """What is known of a column of numbers: arrays of one row's shape."""

    @property
    def mean(self) -> Array: ...
    @property
    def deviation(self) -> Array: ...


class RunningStatistics(nn.Module):
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
    def moments(self) -> Moments:
        return Moments(self.mean, self.variance, self.rows)

    def sums(self, x: Tensor, valid: Tensor) -> Tensor:
        """What `merge` needs of x [T, B, ...], flat; valid bool [T, B]."""
        return masked_sums(x, valid=valid, about=self.mean).flatten()

    def merge(self, sums: Tensor) -> None:
        """Add the rows behind `sums`; rows that are not finite would spoil all that come after and are left out."""
        if not torch.isfinite(sums).all():
            return
        merged = merge(a=self.moments, b=from_sums(sums.view(3, *self.mean.shape), about=self.mean))
        for own, new in zip(self.moments, merged):
            own.copy_(new)


class ObservationNormalizer(nn.Module):
    """Gives vectors of floats in an observation mean 0 and variance 1; images and whole numbers stay as they are."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.space = space
        parts = {name: part for name, part in tree.leaf_spaces(space, "observation").items() if _is_float_vector(part)}
        self.names = list(parts)
        self.parts = nn.ModuleList([RunningStatistics(part.shape) for part in parts.values()])

    def forward(self, observation: Any) -> Any:
        """Any leading axes, nested as the space."""
        flat = tree.flatten(observation, "observation")
        for name, part in zip(self.names, self.parts):
            moments = cast(RunningStatistics, part).moments
            flat[name] = normalise(flat[name].float(), moments=moments, epsilon=EPSILON).clamp(-LIMIT, LIMIT)
        return tree.nest(self.space, flat, "observation")

    def settle(self, statistics: Mapping[str, Spread]) -> None:
        """Take the statistics of data that is all known, by the names of an observation's parts ("observation/arm").

        Deviations are 1e-3 larger (Fujimoto 2021): what never moves in the data must not become huge when it does.
        """
        for name, part in zip(self.names, self.parts):
            running, found = cast(RunningStatistics, part), statistics[name]
            running.mean.copy_(torch.as_tensor(found.mean))
            running.variance.copy_((torch.as_tensor(found.deviation) + LEAST_DEVIATION).square())

    def update(self, observation: Any, valid: Tensor, total: Total) -> None:
        """Add the transitions of rollouts: observations [T+1, B, ...], valid bool [T+1, B]; row T is the next one's."""
        flat = tree.flatten(observation, "observation")
        for name, part in zip(self.names, self.parts):
            running = cast(RunningStatistics, part)
            running.merge(total(running.sums(flat[name][:-1], valid[:-1])))


class RewardNormalizer(RunningStatistics):
    """Rewards as they are learned from: clipped, divided by the standard deviation of discounted returns, as far as
    these can be seen within an unroll, where that is asked for, and scaled."""

    def __init__(self, *, normalize: bool, scale: float, clip: float) -> None:
        super().__init__()
        self.normalize, self.scale, self.clip = normalize, scale, clip

    def forward(self, rewards: Tensor, discounts: Tensor, valid: Tensor, total: Total) -> Tensor:
        """An unroll, all [T, B], discounts γ·(1 − terminated); its returns are added to the statistics first."""
        if not self.normalize:
            return learned_rewards(rewards, scale=self.scale, clip=self.clip)
        rewards = learned_rewards(rewards, scale=1.0, clip=self.clip)
        returns = backward_recurrence(inputs=torch.where(valid, rewards, 0.0), decay=torch.where(valid, discounts, 0.0))
        self.merge(total(self.sums(returns, valid)))
        deviation = torch.rsqrt(self.variance + EPSILON).to(rewards.dtype)
        return (rewards * deviation).clamp(-LIMIT, LIMIT) * self.scale


def _is_float_vector(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and not is_image(space)
