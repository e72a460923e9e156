"""Drawing in proportion to weights: a sum-tree in numpy whose sums never drift.

Weights are the leaves; each level above holds sums of pairs, up to a level of at most 4,096 nodes, over which one
running sum is formed when it is next needed. A parent is always computed again from its two children, so that
rounding does not add up however often weights change, and an index that occurs twice in an update does no harm.
"""

from __future__ import annotations

import numpy as np

from shoal.types import Array

_TOP = 4096
_TRIES = 64


class SumTree:
    def __init__(self, size: int) -> None:
        width = 1 << max(0, size - 1).bit_length()
        self._levels = [np.zeros(width)]  # leaves first
        while width > _TOP:
            width >>= 1
            self._levels.append(np.zeros(width))
        self._running: Array | None = None  # running sum over the top level, None when it must be formed again

    @property
    def leaves(self) -> Array:
        return self._levels[0]

    @property
    def total(self) -> float:
        return float(self._running_sum()[-1])

    def set(self, indices: Array, weights: Array | float) -> None:
        """Where an index occurs twice, the later weight holds."""
        leaves = self._levels[0]
        leaves[indices] = weights
        below = leaves
        for level in self._levels[1:]:
            indices = indices >> 1
            left = indices << 1
            level[indices] = below[left] + below[left + 1]
            below = level
        self._running = None

    def set_range(self, first: int, end: int, weights: Array | float) -> None:
        """As `set` for all indices from `first` to before `end`, several times faster."""
        below = self._levels[0]
        below[first:end] = weights
        for level in self._levels[1:]:
            first >>= 1
            end = (end + 1) >> 1
            pairs = below[2 * first : 2 * end]
            np.add(pairs[::2], pairs[1::2], out=level[first:end])
            below = level
        self._running = None

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """`count` independent indices with probability weight / total, and their weights; never one of weight zero."""
        uniform = generator.random(count)
        order = uniform.argsort()  # going down in order is faster: neighbours take the same turns and cache lines
        drawn = np.empty(count, np.int64)
        drawn[order] = self._descend(uniform[order])
        weights = self.leaves.take(drawn)
        for _ in range(_TRIES):
            if weights.all():
                break
            again = np.flatnonzero(weights == 0.0)  # rounding at the edge of a node's range
            drawn[again] = self._descend(generator.random(len(again)))
            weights = self.leaves.take(drawn)
        else:  # weights so small that products with them are all rounding
            positive, again = np.flatnonzero(self.leaves), np.flatnonzero(weights == 0.0)
            drawn[again] = generator.choice(positive, len(again))
            weights = self.leaves.take(drawn)
        return drawn, weights

    def _descend(self, uniform: Array) -> Array:
        running = self._running_sum()
        target = uniform * running[-1]
        node: Array = running.searchsorted(target, side="right")
        np.minimum(node, len(running) - 1, out=node)
        if len(self._levels) == 1:
            return node
        target -= running.take(node)
        target += self._levels[-1].take(node)
        left = np.empty_like(target)
        for level in self._levels[-2::-1]:
            node += node
            level.take(node, 0, left, "clip")
            right = target >= left
            node += right
            left *= right
            target -= left
        return node

    def _running_sum(self) -> Array:
        if self._running is None:
            self._running = np.cumsum(self._levels[-1])
        return self._running
