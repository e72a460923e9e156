"""Rewards as they are learned from, recurrences that run back through time, and how well values explain returns."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes


def backward_recurrence(*, inputs: Tensor, decay: Tensor, by_doubling: bool | None = None) -> Tensor:
    """x_t = inputs_t + decay_t · x_{t+1} with x_T = 0. Both [T, B], result [T, B]; carries no gradient.

    V-trace, λ-returns and generalised advantages are all this recurrence. On the CPU it runs over numpy views,
    where a step costs about 1 µs against 10 µs in torch; elsewhere it doubles its reach log2(T) times.
    `by_doubling` chooses between the two by hand.
    """
    check_shapes(inputs.shape, decay=decay)
    inputs, decay = inputs.detach(), decay.detach()
    result = inputs.clone(memory_format=torch.contiguous_format)
    length = len(inputs)
    if by_doubling is None:
        by_doubling = result.device.type != "cpu"
    if not by_doubling:
        rows, decays = list(result.numpy()), list(decay.numpy())
        for t in range(length - 2, -1, -1):
            rows[t] += decays[t] * rows[t + 1]
        return result
    reach = 1
    while reach < length:
        result = torch.cat([result[:-reach] + decay[:-reach] * result[reach:], result[-reach:]])
        decay = torch.cat([decay[:-reach] * decay[reach:], torch.zeros_like(decay[-reach:])])
        reach *= 2
    return result


def explained_variance(*, squared_error: Tensor, targets: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """1 − mean squared error / Var(targets) over valid rows, 0-d: 1 is perfect, 0 no better than their mean.

    squared_error is the mean over valid rows, 0-d; targets and valid [T, B]; count of valid rows, 0-d.
    """
    targets = torch.where(valid, targets, 0.0)
    variance = (targets.square().sum() - targets.sum().square() / count) / count
    return 1.0 - squared_error / variance.clamp(min=1e-8)


def learned_rewards(rewards: Tensor, *, scale: float, clip: float = 0.0) -> Tensor:
    """Rewards as they are learned from: clipped to ± clip (0: not at all), then scaled."""
    return (rewards.clamp(-clip, clip) if clip else rewards) * scale
