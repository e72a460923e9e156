"""Losses of policy-gradient actor-critics: means over the valid rows of a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.returns import explained_variance


def masked_mean(x: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Σ x over valid rows / count, 0-d. x and valid (bool) [T, B], count 0-d.

    Masked with `where`, because 0 · inf is NaN. The count is the caller's: with several learners it is the global one.
    """
    return torch.where(valid, x, 0.0).sum() / count


def policy_gradient_loss(log_prob: Tensor, advantages: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """−mean(log π(a) · A) over valid rows (Mnih 2016). All [T, B]; no gradient through the advantages."""
    return -masked_mean(log_prob * advantages.detach(), valid, count)


def value_loss(values: Tensor, targets: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Half the mean squared error over valid rows. All [T, B]; no gradient through the targets."""
    return 0.5 * masked_mean((values - targets.detach()).square(), valid, count)


def entropy_bonus(entropy: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """Mean entropy over valid rows, to be subtracted from the loss. Both [T, B]."""
    return masked_mean(entropy, valid, count)


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
    for_policy = policy_gradient_loss(log_prob, advantages, valid, count)
    for_value = value_loss(values, targets, valid, count)
    bonus = entropy_bonus(entropy, valid, count)
    loss = for_policy + value_cost * for_value - entropy_cost * bonus
    parts = {"loss": loss, "policy_loss": for_policy, "value_loss": for_value, "entropy": bonus}
    metrics = {name: part.detach() for name, part in parts.items()}
    metrics["explained_variance"] = explained_variance(2.0 * metrics["value_loss"], targets, valid, count)
    return ActorCriticLoss(loss, metrics)
