"""Value rescaling: a function that flattens large returns, so that rewards need no clipping, and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-3  # keeps the inverse Lipschitz


def rescale(x: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """h(x) = sign(x)(√(|x| + 1) − 1) + εx (Pohlen 2018), element by element; written so that nothing cancels at 0."""
    return x / (torch.sqrt(x.abs() + 1.0) + 1.0) + epsilon * x


def inverse_rescale(x: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """h⁻¹(x) = sign(x)(((√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε)² − 1), element by element.

    So written it loses four digits of float32 near 0. With y what is squared, d = sign(x)(y − 1) can be had without
    a difference of nearly equal numbers, and sign(x)(y² − 1) = d(|d| + 2).
    """
    root = torch.sqrt((1.0 + 2.0 * epsilon) ** 2 + 4.0 * epsilon * x.abs())
    d = 2.0 * x * (1.0 - 2.0 * epsilon / (root + 1.0 + 2.0 * epsilon)) / (root + 1.0)
    return d * (d.abs() + 2.0)
