"""Drawing in proportion to weights: a sum-tree in numpy whose sums never drift.

Weights are the leaves; each level above holds sums of pairs, up to a level of at most 4,096 nodes, over which one
running sum is formed when it is next needed. A parent is always computed again from its two children, so that
rounding does not add up however often weights change, and an index that occurs twice in an update does no harm.
"""

from __future__ import annotations

import numpy as np

from .messages import Array

_TOP = 4096


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
        count = len(indices)
        if count == 0:
            return
        first = int(indices[0])
        if int(indices[-1]) - first == count - 1 and bool((indices[1:] > indices[:-1]).all()):
            self._set_range(first, count, weights)
            return
        leaves = self._levels[0]
        leaves[indices] = weights
        below = leaves
        for level in self._levels[1:]:
            indices = indices >> 1
            left = indices << 1
            level[indices] = below[left] + below[left + 1]
            below = level
        self._running = None

    def _set_range(self, first: int, count: int, weights: Array | float) -> None:
        """As `set` for neighbours: what a table that is filled in order does, several times faster."""
        end = first + count
        below = self._levels[0]
        below[first:end] = weights
        for level in self._levels[1:]:
            first >>= 1
            end = (end + 1) >> 1
            pairs = below[2 * first : 2 * end]
            np.add(pairs[::2], pairs[1::2], out=level[first:end])
            below = level
        self._running = None

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """`count` independent indices, each with probability weight / total; never one of weight zero."""
        drawn = self._descend(generator.random(count))
        empty = np.flatnonzero(self.leaves[drawn] <= 0.0)  # rounding at the edge of a node's range
        while len(empty):
            drawn[empty] = self._descend(generator.random(len(empty)))
            empty = empty[self.leaves[drawn[empty]] <= 0.0]
        return drawn

    def _descend(self, uniform: Array) -> Array:
        running = self._running_sum()
        target = uniform * running[-1]
        node: Array = np.searchsorted(running, target, side="right")
        np.minimum(node, len(running) - 1, out=node)
        if len(self._levels) == 1:
            return node
        target -= running[node]
        target += self._levels[-1][node]
        for level in self._levels[-2::-1]:
            node <<= 1
            left = level[node]
            right = target >= left
            node += right
            target -= left * right
        return node

    def _running_sum(self) -> Array:
        if self._running is None:
            self._running = np.cumsum(self._levels[-1])
        return self._running
