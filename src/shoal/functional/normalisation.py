"""Means and variances that can be summed over learners and merged over time, and normalising with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes


class Moments(NamedTuple):
    mean: Tensor  # [...]
    variance: Tensor  # [...], of the data itself: divided by the number of rows
    rows: Tensor  # 0-d, how many there were


@torch.no_grad()
def masked_sums(x: Tensor, *, valid: Tensor, about: Tensor | None = None) -> Tensor:
    """Σ(x − about), Σ(x − about)² and the number of valid rows. x [T, B, ...], valid [T, B] → float64 [3, ...].

    These add up over learners. `about` [...] (0 if None) is a number near the mean that all learners share, such as
    the running mean: it keeps the variance of data far from 0 exact.
    """
    check_shapes(x.shape[: valid.dim()], valid=valid)
    x = x.double() if about is None else x.double() - about
    x = torch.where(valid.view(*valid.shape, *[1] * (x.dim() - valid.dim())), x, 0.0).flatten(0, valid.dim() - 1)
    rows = valid.sum().double()
    return torch.stack([x.sum(0), x.square().sum(0), rows.expand(x.shape[1:])])


@torch.no_grad()
def from_sums(sums: Tensor, *, about: Tensor | None = None) -> Moments:
    """The statistics of the rows that were summed. sums [3, ...] and what they are about."""
    rows = sums[2].flatten()[0]
    mean, square = sums[:2] / rows.clamp(min=1.0)
    variance = (square - mean.square()).clamp(min=0.0)
    return Moments(mean if about is None else mean + about, variance, rows)


@torch.no_grad()
def merge(*, a: Moments, b: Moments) -> Moments:
    """The statistics of both sets of rows together (Chan 1983). Means and variances of one shape."""
    rows = a.rows + b.rows
    share = b.rows / rows.clamp(min=1.0)
    difference = b.mean - a.mean
    variance = a.variance + share * (b.variance - a.variance) + share * (1.0 - share) * difference.square()
    return Moments(a.mean + share * difference, variance, rows)


def normalise(x: Tensor, *, moments: Moments, epsilon: float = 1e-8) -> Tensor:
    """(x − mean) / √(variance + ε), of x's dtype. x [..., *mean.shape]."""
    scale = torch.rsqrt(moments.variance + epsilon)
    return (x - moments.mean.to(x.dtype)) * scale.to(x.dtype)


@torch.no_grad()
def normalise_advantages(advantages: Tensor, *, valid: Tensor, sums: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Advantages with mean 0 and variance 1 over the rows behind `sums` (`masked_sums`, added up over all learners).

    advantages and valid [T, B], sums [3]; 0 on rows that are no transitions.
    """
    return torch.where(valid, normalise(advantages, moments=from_sums(sums), epsilon=epsilon), 0.0)
