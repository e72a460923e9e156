"""Losses of policy-gradient actor-critics: means over the valid rows of a batch.

Each is one operation with its gradient written out: of rows as few as a minibatch has, autograd's steps through the
handful that it is made of cost more than they do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.functional.returns import explained_variance
from shoal.functional.shapes import check_shapes


def masked_mean(x: Tensor, *, valid: Tensor, count: Tensor) -> Tensor:
    """Σ x over valid rows / count, 0-d. x and valid (bool) [T, B], count 0-d.

    Masked with `where`, because 0 · inf is NaN. The count is the caller's: with several learners it is the global one.
    """
    check_shapes(valid.shape, x=x)
    return _MaskedMean.apply(x, valid, count)  # type: ignore[no-any-return, no-untyped-call]


class _MaskedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        ctx.save_for_backward(valid, count)
        return torch.where(valid, x, 0.0).sum() / count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        valid, count = ctx.saved_tensors
        return valid * (gradient / count), None, None


def policy_gradient_loss(*, log_prob: Tensor, advantages: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """−mean(log π(a) · A) over valid rows (Mnih 2016). All [T, B]; no gradient through the advantages."""
    check_shapes(valid.shape, log_prob=log_prob, advantages=advantages)
    return -masked_mean(log_prob * advantages.detach(), valid=valid, count=count)


def value_loss(*, values: Tensor, targets: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Half the mean squared error over valid rows. All [T, B]; no gradient through the targets."""
    check_shapes(valid.shape, values=values, targets=targets)
    return _ValueLoss.apply(values, targets.detach(), valid, count)  # type: ignore[no-any-return, no-untyped-call]


class _ValueLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, targets: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        errors = torch.where(valid, values - targets, 0.0)
        ctx.save_for_backward(errors, count)
        return 0.5 * errors.square().sum() / count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        errors, count = ctx.saved_tensors
        return errors * (gradient / count), None, None, None


def entropy_bonus(entropy: Tensor, *, valid: Tensor, count: Tensor) -> Tensor:
    """Mean entropy over valid rows, to be subtracted from the loss. Both [T, B]."""
    return masked_mean(entropy, valid=valid, count=count)


class ActorCriticLoss(NamedTuple):
    loss: Tensor  # 0-d
    metrics: dict[str, Tensor]  # its parts, and how much of the targets the values explain; without gradients


def actor_critic_loss(
    *,
    log_prob: Tensor,
    entropy: Tensor,
    values: Tensor,
    advantages: Tensor,
    targets: Tensor,
    valid: Tensor,
    value_cost: float,
    entropy_cost: float,
) -> ActorCriticLoss:
    """Policy gradient + value_cost · value loss − entropy_cost · entropy, each a mean over valid rows (Mnih 2016).

    All [T, B]. Rows are counted here: gradients of several learners are weighted by their counts when they are summed.
    """
    count = valid.sum().clamp(min=1)
    policy_loss = policy_gradient_loss(log_prob=log_prob, advantages=advantages, valid=valid, count=count)
    values_loss = value_loss(values=values, targets=targets, valid=valid, count=count)
    bonus = entropy_bonus(entropy, valid=valid, count=count)
    loss = policy_loss + value_cost * values_loss - entropy_cost * bonus
    parts = {"loss": loss, "policy_loss": policy_loss, "value_loss": values_loss, "entropy": bonus}
    metrics = {name: part.detach() for name, part in parts.items()}
    metrics["explained_variance"] = explained_variance(
        squared_error=2.0 * metrics["value_loss"], targets=targets, valid=valid, count=count
    )
    return ActorCriticLoss(loss, metrics)
