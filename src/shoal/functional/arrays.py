"""What acting computes on numpy arrays or on tensors alike, and random numbers of either kind, without a copy between
them: what is given decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.types import Array, Values

Random = np.random.Generator | torch.Generator  # one of torch's for tensors that never meet an array


def library(values: Values) -> Any:
    """numpy or torch: for functions that both have under one name (where, stack, clip, …)."""
    return torch if isinstance(values, Tensor) else np


def to_numpy(values: Values) -> Array:
    """A copy of what leaves the process."""
    return np.array(values.cpu().numpy() if isinstance(values, Tensor) else values)


def zero_where(begins: Values, state: dict[str, Values]) -> dict[str, Values]:
    """A recurrent state, each part [B, ...], that is zero where an episode begins, bool [B]."""
    if not state:
        return state
    if isinstance(begins, Tensor):
        return {name: x.masked_fill(_align(begins, x), 0) for name, x in state.items()}
    if not begins.any():
        return state
    return {name: np.where(_align(begins, x), np.zeros((), x.dtype), x) for name, x in state.items()}


def _align(mask: Values, x: Values) -> Values:
    """mask [B] with as many trailing axes as x [B, ...]."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def pick(values: Values, index: Values) -> Values:
    """Of every row the value at its index: [B, n, ...], int [B] → [B, ...]."""
    of = library(values)
    return values[of.arange(len(values), **_on(values)), index]


def constant(numbers: tuple[float, ...], like: Values) -> Values:
    """float32 [n], where `like` is."""
    of = library(like)
    return of.asarray(numbers, dtype=of.float32, **_on(like))


def _on(values: Values) -> dict[str, Any]:
    return {"device": values.device} if isinstance(values, Tensor) else {}


def uniform(random: Random, like: Values) -> Values:
    """Numbers from 0 to 1, of the shape of `like`."""
    if isinstance(random, torch.Generator):
        return torch.rand(like.shape, generator=random, device=like.device)
    return _as(like, random.random(tuple(like.shape)))


def integers(random: Random, below: int, like: Values) -> Values:
    """Whole numbers from 0, int64 of the shape of `like`."""
    if isinstance(random, torch.Generator):
        return torch.randint(below, like.shape, generator=random, device=like.device)
    return _as(like, random.integers(below, size=tuple(like.shape)))


def normal(random: Random, like: Values) -> Values:
    """Standard normal, float32 of the shape of `like`."""
    if isinstance(random, torch.Generator):
        return torch.randn(like.shape, generator=random, device=like.device)
    return _as(like, random.standard_normal(tuple(like.shape), dtype=np.float32))


def exponential(random: Random, like: Values) -> Values:
    """Standard exponential, float32 of the shape of `like`."""
    if isinstance(random, torch.Generator):
        return torch.empty(like.shape, device=like.device).exponential_(generator=random)
    return _as(like, random.standard_exponential(tuple(like.shape), dtype=np.float32))


def _as(like: Values, drawn: Values) -> Values:
    return torch.from_numpy(drawn).to(like.device) if isinstance(like, Tensor) else drawn
