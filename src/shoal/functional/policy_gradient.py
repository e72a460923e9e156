"""Losses of policy-gradient actor-critics: means over the valid rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor


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
