"""Gaussian actions squashed by tanh, in units in which the bounds are −1 and 1."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LAST = 1.0 - 2.0**-23


class Squashed(NamedTuple):
    action: Tensor  # [B, n] within −1 and 1
    log_prob: Tensor  # [B]


def squashed_gaussian(*, mean: Tensor, log_std: Tensor, noise: Tensor) -> Squashed:
    """tanh(u) with u = mean + exp(log_std) · noise, and its log-density (Haarnoja 2018b, appendix C). All [B, n].

    The density is corrected by Σ log(1 − tanh²u), computed as 2(log 2 − u − softplus(−2u)): exact also where tanh(u)
    rounds to 1. `noise` is standard normal; the gradient flows through mean and deviation.
    """
    check_shapes(mean.shape, log_std=log_std, noise=noise)
    action, log_prob = _SquashedGaussian.apply(mean, log_std, noise)  # type: ignore[no-untyped-call]
    return Squashed(action, log_prob)


def squashed_log_prob(*, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """The log-density [B] of actions that were taken, within −1 and 1. All [B, n].

    Actions that have rounded to their bounds count as the last numbers before them: tanh never gives the bounds.
    """
    check_shapes(mean.shape, log_std=log_std, action=action)
    u = torch.atanh(action.clamp(-_LAST, _LAST))
    gaussian = -0.5 * ((u - mean) / log_std.exp()).square() - log_std - _HALF_LOG_TWO_PI
    correction = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    return (gaussian - correction).sum(-1)


class _SquashedGaussian(torch.autograd.Function):
    """Both as one operation: of numbers as few as these, autograd's steps through a dozen of them cost more than they
    do. The density's slope by u is 2 tanh(u)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        u = torch.addcmul(mean, log_std.exp(), noise)
        gaussian = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
        correction = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
        action = torch.tanh(u)
        ctx.save_for_backward(log_std, noise, action)
        return action, (gaussian - correction).sum(-1)

    @staticmethod
    def backward(ctx: Any, for_action: Tensor, for_log_prob: Tensor) -> tuple[Tensor, Tensor, None]:
        """Of operations that have derivatives themselves."""
        log_std, noise, action = ctx.saved_tensors
        for_log_prob = for_log_prob.unsqueeze(-1)
        for_u = for_action * (1.0 - action.square()) + 2.0 * for_log_prob * action
        return for_u, for_u * log_std.exp() * noise - for_log_prob, None
