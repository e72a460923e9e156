"""Gaussian actions squashed by tanh, in units in which the bounds are −1 and 1."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Squashed(NamedTuple):
    action: Tensor  # [B, n] within −1 and 1
    log_prob: Tensor  # [B]


def squashed_gaussian(*, mean: Tensor, log_std: Tensor, noise: Tensor) -> Squashed:
    """tanh(u) with u = mean + exp(log_std) · noise, and its log-density (Haarnoja 2018b, appendix C). All [B, n].

    The density is corrected by Σ log(1 − tanh²u), computed as 2(log 2 − u − softplus(−2u)): exact also where tanh(u)
    rounds to 1. `noise` is standard normal; the gradient flows through mean and deviation.
    """
    check_shapes(mean.shape, log_std=log_std, noise=noise)
    u = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
    correction = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    return Squashed(torch.tanh(u), (gaussian - correction).sum(-1))
