"""V-trace: off-policy corrected value targets and policy-gradient advantages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.returns import backward_recurrence
from shoal.functional.shapes import check_shapes


class VTrace(NamedTuple):
    targets: Tensor  # [T, B], what the value of each row is trained towards
    advantages: Tensor  # [T, B], weights of the policy's log-probability gradient, clipped ratio included


@torch.no_grad()
def vtrace(
    *,
    values: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    rho: Tensor,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """V-trace targets (Espeholt 2018, eq. 1). values [T+1, B], the rest [T, B]; rho = 0 cuts the trace.

    What follows a row is worth λ·target + (1 − λ)·value of the next one in its advantage, as in RLax: on-policy it is
    then GAE(λ). The paper, where λ = 1, has the target alone.

    rho is the ratio π/μ of the target's and the behaviour's probability of the action, 0 on rows that are no
    transitions: there the target is the value itself and the advantage 0, so nothing crosses the end of an episode.
    No gradient flows through the outputs.
    """
    check_shapes((len(values) - 1, *values.shape[1:]), rewards=rewards, discounts=discounts, rho=rho)
    current, following = values[:-1], values[1:]
    clipped = rho.clamp(max=clip_rho)
    error = torch.addcmul(rewards, discounts, following).sub_(current).mul_(clipped)
    trace = clipped if clip_c == clip_rho else rho.clamp(max=clip_c)
    decay = discounts * trace if lambda_ == 1.0 else discounts * trace * lambda_
    correction = backward_recurrence(inputs=error, decay=decay)
    targets = correction + current
    after = torch.cat([targets[1:] if lambda_ == 1.0 else current[1:] + lambda_ * correction[1:], values[-1:]])
    weight = clipped if clip_pg_rho == clip_rho else rho.clamp(max=clip_pg_rho)
    advantages = torch.addcmul(rewards, discounts, after).sub_(current).mul_(weight)
    return VTrace(targets, advantages)
