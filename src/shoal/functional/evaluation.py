"""What a policy would earn, from what another one did: importance sampling over whole episodes, and ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes


class Sampled(NamedTuple):
    value: Tensor  # [D]: the estimate of each draw of episodes
    effective: Tensor  # 0-d: how many episodes count as much as all of them do, weighted: (Σw)² / Σw²


def weighted_importance_sampling(
    *, rewards: Tensor, log_ratios: Tensor, valid: Tensor, counts: Tensor, gamma: float
) -> Sampled:
    """Self-normalised importance sampling, decision by decision (Precup 2000): Σ_t γᵗ Σ_i w_it r_it / Σ_i w_it.

    rewards, log_ratios and valid (bool) are [E, T] of episodes from their first step on; log_ratios are log π(a|s)
    minus the log-probability of who acted, and w_it is the exponential of their sum up to t. An episode that is over
    earns 0 and keeps its last weight. counts [D, E] say how often each episode is in each of D draws.
    """
    check_shapes(rewards.shape, log_ratios=log_ratios, valid=valid)
    check_shapes((len(counts), len(rewards)), counts=counts)
    summed = torch.where(valid, log_ratios, 0.0).cumsum(1)
    weights = (summed - summed.amax(0).clamp(min=-1e30)).exp()  # of each step the largest is 1: ratios stay the same
    steps = torch.arange(rewards.shape[1], device=rewards.device)
    earned = counts @ (weights * torch.where(valid, rewards, 0.0)) * gamma**steps
    total = counts @ weights
    value = torch.where(total > 0.0, earned / total.clamp(min=1e-30), 0.0).sum(1)
    last = weights[:, -1]
    return Sampled(value, last.sum().square() / last.square().sum().clamp(min=1e-30))


def rank_correlation(one: Tensor, *, other: Tensor) -> Tensor:
    """Spearman's: the correlation of ranks, of equal values their mean. Both [N] → 0-d; NaN where one has no order."""
    check_shapes(one.shape, other=other)
    ranks = [(x.unsqueeze(1) > x).sum(1) + 0.5 * ((x.unsqueeze(1) == x).sum(1) - 1) for x in (one, other)]
    a, b = (rank.double() - rank.double().mean() for rank in ranks)
    return (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()
