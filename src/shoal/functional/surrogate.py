"""Clipped surrogates of proximal policy optimisation, synchronous and asynchronous, and how far a policy has moved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.functional.policy_gradient import masked_mean
from shoal.functional.shapes import check_shapes


def clipped_surrogate_loss(
    *, log_prob: Tensor, behaviour_log_prob: Tensor, advantages: Tensor, valid: Tensor, count: Tensor, clip: float = 0.2
) -> Tensor:
    """−mean min(r·A, clip(r, 1 ± clip)·A) with r = π/μ over valid rows (Schulman 2017, eq. 7), 0-d. All [T, B] or [N].

    No gradient through the advantages or the behaviour's log-probability; the count is the caller's (global) one.
    """
    check_shapes(log_prob.shape, behaviour_log_prob=behaviour_log_prob, advantages=advantages, valid=valid)
    return _ClippedSurrogate.apply(  # type: ignore[no-any-return, no-untyped-call]
        log_prob, behaviour_log_prob.detach(), advantages.detach(), valid, count, clip
    )


class _ClippedSurrogate(torch.autograd.Function):
    """One operation, as the losses of `policy_gradient` are. Where both products are the same, within the clip, the
    slope is that of the first; where the second is smaller it has none."""

    @staticmethod
    def forward(
        ctx: Any, log_prob: Tensor, behaviour: Tensor, advantages: Tensor, valid: Tensor, count: Tensor, clip: float
    ) -> Tensor:
        ratio = _ratio(log_prob, behaviour, valid)
        free, limited = ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages
        ctx.save_for_backward(torch.where(valid & (free <= limited), free, 0.0), count)
        return -(torch.where(valid, torch.minimum(free, limited), 0.0).sum() / count)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        slope, count = ctx.saved_tensors  # d(r·A) = r·A · d log π
        return slope * (-gradient / count), None, None, None, None, None


def asynchronous_surrogate_loss(
    *,
    log_prob: Tensor,
    target_log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantages: Tensor,
    valid: Tensor,
    count: Tensor,
    clip: float = 0.2,
    limit: float = 2.0,
) -> Tensor:
    """The same with r = min(limit, μ/π_target) · π/μ, for a slowly moving target policy (Luo 2019), 0-d.

    As long as the limit is not reached r = π/π_target: what is clipped is the step away from the target policy, not
    from the behaviour μ, which may lie several versions back. Gradient only through log_prob.
    """
    behaviour = behaviour_log_prob.detach()
    correction = _ratio(behaviour, target_log_prob.detach(), valid).clamp(max=limit)
    ratio = correction * _ratio(log_prob, behaviour, valid)
    return -masked_mean(_clipped(ratio, advantages.detach(), clip), valid=valid, count=count)


def clipped_value_loss(
    *, values: Tensor, old_values: Tensor, targets: Tensor, valid: Tensor, count: Tensor, clip: float = 0.2
) -> Tensor:
    """½ mean max((v − R)², (v_old + clip(v − v_old, ± clip) − R)²) over valid rows, 0-d. All [T, B] or [N].

    A value gains nothing by moving further than `clip` from what it was when the rows were collected (v_old).
    Gradient only through the values.
    """
    check_shapes(values.shape, old_values=old_values, targets=targets, valid=valid)
    old, targets = old_values.detach(), targets.detach()
    error = torch.where(valid, values - targets, 0.0)
    limited = torch.where(valid, old + (values - old).clamp(-clip, clip) - targets, 0.0)
    return 0.5 * masked_mean(torch.maximum(error.square(), limited.square()), valid=valid, count=count)


@torch.no_grad()
def approximate_kl(*, log_prob: Tensor, behaviour_log_prob: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """KL(μ ‖ π) as mean(r − 1 − log r) over valid rows, r = π/μ, 0-d: unbiased, never negative (Schulman 2020)."""
    log_ratio = torch.where(valid, log_prob - behaviour_log_prob, 0.0)
    return masked_mean(torch.expm1(log_ratio) - log_ratio, valid=valid, count=count)


@torch.no_grad()
def clipped_fraction(
    *, log_prob: Tensor, behaviour_log_prob: Tensor, valid: Tensor, count: Tensor, clip: float = 0.2
) -> Tensor:
    """The part of the valid rows whose ratio π/μ lies outside 1 ± clip, 0-d."""
    outside = (_ratio(log_prob, behaviour_log_prob, valid) - 1.0).abs() > clip
    return masked_mean(outside.to(log_prob.dtype), valid=valid, count=count)


def _ratio(log_prob: Tensor, other: Tensor, valid: Tensor) -> Tensor:
    """exp(log_prob − other), 1 on rows that are no transitions: masked before the exp, or 0 · inf is their gradient."""
    check_shapes(log_prob.shape, other=other, valid=valid)
    return torch.exp(torch.where(valid, log_prob - other, 0.0))


def _clipped(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    check_shapes(ratio.shape, advantages=advantages)
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)
