"""Recurrences that run backwards through time, and how well values explain returns."""

from __future__ import annotations

import torch
from torch import Tensor


def backward_recurrence(inputs: Tensor, decay: Tensor) -> Tensor:
    """x_t = inputs_t + decay_t · x_{t+1} with x_T = 0. Both [T, B], result [T, B]; carries no gradient.

    V-trace, λ-returns and generalised advantages are all this recurrence. On the CPU it runs over numpy views,
    where a step costs about 1 µs against 10 µs in torch; elsewhere it doubles its reach log2(T) times.
    """
    inputs, decay = inputs.detach(), decay.detach()
    result = inputs.clone(memory_format=torch.contiguous_format)
    length = len(inputs)
    if result.device.type == "cpu":
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


def explained_variance(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """1 − Var(targets − values) / Var(targets) over valid rows, 0-d: 1 is perfect, 0 no better than a constant."""
    weight = valid.to(values.dtype)
    count = weight.sum().clamp(min=1.0)

    def variance(x: Tensor) -> Tensor:
        x = torch.where(valid, x, 0.0)
        return (x.square().sum() - x.sum().square() / count) / count

    return 1.0 - variance(targets - values) / variance(targets).clamp(min=1e-8)
