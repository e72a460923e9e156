"""Statistics over seeds as Agarwal 2021 ("Deep reinforcement learning at the edge of the statistical precipice") has
them: the interquartile mean, and its interval by a bootstrap that is stratified by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
DRAWS = 2000  # of the bootstrap
LEVEL = 0.95
AT_ONCE = 4_000_000  # numbers that are held while drawing


def interquartile_mean(values: Any) -> float:
    """The mean without the lowest and the highest quarter; of fewer than four values, of all."""
    return float(_trimmed(np.asarray(values, np.float64).reshape(-1)))


def interval(*strata: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the interquartile mean over all values. The runs of each stratum, a task, are
    drawn anew with replacement among themselves, so that every task keeps its share."""
    low, high = interval_of_curves(*(np.asarray(values, np.float64)[:, np.newaxis] for values in strata), seed=seed)
    return float(low[0]), float(high[0])


def interval_of_curves(*strata: Array, seed: int = 0) -> tuple[Array, Array]:
    """The same at every point of curves [runs, points]: a run is drawn as a whole."""
    source = np.random.default_rng(seed)
    drawn = [source.integers(len(curves), size=(DRAWS, len(curves))) for curves in strata]
    count, points = sum(map(len, strata)), strata[0].shape[1]
    size = max(1, AT_ONCE // (DRAWS * count))
    ends = []
    for begin in range(0, points, size):
        parts = [
            curves.T[begin : begin + size][:, rows] for curves, rows in zip(strata, drawn)
        ]  # [points, draws, runs]
        means = _trimmed(np.concatenate(parts, axis=-1))
        ends.append(np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1))
    low, high = np.concatenate(ends, axis=-1)
    return low, high


def middle_of_curves(curves: Array) -> Array:
    """The interquartile mean at every point of curves [runs, points]."""
    return np.asarray(_trimmed(curves.T), np.float64)


def _trimmed(values: Array) -> Array:
    """The mean over the last axis without a quarter of it, rounded down, at each end."""
    ordered = np.sort(values, axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1), np.float64)
