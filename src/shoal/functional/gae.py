"""Generalised advantage estimation: advantages and value targets of on-policy rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.returns import backward_recurrence
from shoal.functional.shapes import check_shapes


class GAE(NamedTuple):
    advantages: Tensor  # [T, B], 0 on rows that are no transitions
    targets: Tensor  # [T, B], what the value of each row is trained towards


@torch.no_grad()
def gae(*, values: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, lambda_: float = 0.95) -> GAE:
    """GAE(λ) (Schulman 2016, eq. 16). values [T+1, B], the rest [T, B], discounts γ·(1 − terminated), valid bool.

    A row that is no transition has advantage 0, so nothing crosses the end of an episode; the row before it is
    bootstrapped from its value, that of the final observation. No gradient flows through the outputs.
    """
    check_shapes((len(values) - 1, *values.shape[1:]), rewards=rewards, discounts=discounts, valid=valid)
    current, following = values[:-1], values[1:]
    following = torch.where(discounts == 0, 0.0, following)
    error = torch.where(valid, torch.addcmul(rewards, discounts, following).sub_(current), 0.0)
    advantages = backward_recurrence(inputs=error, decay=torch.where(valid, discounts * lambda_, 0.0))
    return GAE(advantages, advantages + current)
