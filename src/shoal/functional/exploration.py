"""How environments explore differently: ladders over all environments of a run, and noisy actions."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from shoal.functional.arrays import Random, integers, library, normal, uniform
from shoal.types import Array, Values


def epsilon_ladder(*, index: Array, total: int, base: float = 0.4, exponent: float = 7.0) -> Array:
    """ε_i = base^(1 + exponent · i/(N−1)) for environments `index` of N = `total` (Horgan 2018), float32 [len(index)].

    A single environment has ε = base.
    """
    return (base ** (1.0 + exponent * _place(index, total))).astype(np.float32)


def noise_ladder(*, index: Array, total: int, largest: float, smallest: float) -> Array:
    """Standard deviations from `largest` down to `smallest` in equal ratios, float32 [len(index)].

    The paper gives no ladder for deterministic policies; this one has the form of `epsilon_ladder`. A single
    environment has the largest.
    """
    if largest == 0.0:
        return np.zeros(len(index), np.float32)
    return (largest * (smallest / largest) ** _place(index, total)).astype(np.float32)


def epsilon_greedy(q: Values, epsilon: Values, random: Random) -> Values:
    """The best action, or with probability ε any one. q [B, A], epsilon [B] → int64 [B], counted from 0."""
    one = q[:, 0]
    anything = integers(random, q.shape[1], one)
    return library(q).where(uniform(random, one) < epsilon, anything, q.argmax(-1))


def gaussian_noise(actions: Values, scale: Values, random: Random) -> Values:
    """Actions [B, n] in units where the bounds are −1 and 1, with noise of deviation `scale` [B], kept within them."""
    noisy = library(actions).clip(actions + scale[:, None] * normal(random, actions), -1.0, 1.0)
    return noisy.float() if isinstance(noisy, Tensor) else noisy.astype(np.float32, copy=False)


def _place(index: Array, total: int) -> Array:
    """Where each environment stands among all: 0 for the first, 1 for the last."""
    return np.asarray(index, np.float64) / max(total - 1, 1)
