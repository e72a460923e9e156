"""Orders that no algorithm here uses: lowest or highest priority first, newest first, and stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.types import Array

from ..arrays import distinct
from ..description import Table
from ..limiters import Queue
from ..selectors import Fifo, InOrder, Ranked


@dataclass(frozen=True)
class MinHeap:
    """The item of lowest priority; the oldest of equals."""

    def start(self, keys: Array, priorities: Array) -> Ranked:
        return _Extreme(1.0, keys, priorities)


@dataclass(frozen=True)
class MaxHeap:
    """The item of highest priority; the oldest of equals."""

    def start(self, keys: Array, priorities: Array) -> Ranked:
        return _Extreme(-1.0, keys, priorities)


class _Extreme(Ranked):
    """The foremost items by priority: a short list of candidates, formed anew from all items when it runs out.

    Every item that is not a candidate ranks behind `_bound`, so a newcomer need only be compared with that. Forming the
    list costs a pass over the table and pays for the next thousand or more choices.
    """

    def __init__(self, sign: float, keys: Array, priorities: Array) -> None:
        self._sign = sign
        self._keys = keys
        self._priorities = priorities
        self._candidates: list[Array] = []
        self._count = 0
        self._bound = (-np.inf, -1)  # value and key: equal values rank by age

    def insert(self, slots: Array, place: Array | slice) -> None:
        near = slots[self._within(slots)]
        if len(near):
            self._candidates.append(near)
            self._count += len(near)
            if self._count > 2 * len(self._keys):  # the same few changed over and over
                self._collect(0)

    def update(self, slots: Array) -> None:
        self.insert(slots, slots)

    def remove(self, slots: Array, place: Array | slice, foremost: bool) -> None:
        pass  # an empty slot is recognised by its key

    def first(self, count: int) -> Array:
        slots = self._collect(count)
        value = self._sign * self._priorities[slots]
        return slots[np.lexsort((self._keys[slots], value))[:count]]

    def _within(self, slots: Array) -> Array:
        value, key = self._bound
        values = self._sign * self._priorities[slots]
        within: Array = (values < value) | ((values == value) & (self._keys[slots] <= key))
        return within

    def _collect(self, count: int) -> Array:
        slots = distinct(np.concatenate(self._candidates)) if self._candidates else np.empty(0, np.int64)
        slots = slots[self._keys[slots] > 0]
        slots = slots[self._within(slots)]
        enough = max(1024, 2 * count)
        if len(slots) < count or len(slots) > 8 * enough:
            slots = np.flatnonzero(self._keys)
            values = self._sign * self._priorities[slots]
            if len(slots) <= 2 * enough:
                self._bound = (np.inf, np.iinfo(np.int64).max)
            else:
                value = float(np.partition(values, enough)[enough])
                before = slots[values < value]
                equal = slots[values == value]
                equal = equal[np.argsort(self._keys[equal])[: enough - len(before)]]
                self._bound = (value, int(self._keys[equal[-1]]) if len(equal) else -1)
                slots = np.concatenate([before, equal])
        self._candidates = [slots]
        self._count = len(slots)
        return slots


@dataclass(frozen=True)
class Lifo:
    """The item inserted last."""

    def start(self, keys: Array, priorities: Array) -> Ranked:
        return _Newest(len(keys))


def stack(name: str, size: int) -> Table:
    """Read once, newest first: inserting waits while `size` items are unread, sampling waits for items."""
    return Table(name, size, sampler=Lifo(), remover=Fifo(), limiter=Queue(size), max_times_sampled=1)


class _Newest(InOrder):
    def _pass(self, count: int) -> None:
        self._tail -= count

    def first(self, count: int) -> Array:
        if not self._gaps:
            begin = max(self._head, self._tail - count)
            return self._list[begin : self._tail][::-1].astype(np.int64)
        reach = count
        while True:
            begin = max(self._head, self._tail - reach)
            slots = self._list[begin : self._tail]
            present = self._place[slots] == np.arange(begin, self._tail)
            found = np.flatnonzero(present)
            if len(found) >= count or begin == self._head:
                end = begin + int(found[-1]) + 1 if len(found) else begin
                self._gaps -= self._tail - end
                self._tail = end
                return slots[found[: -count - 1 : -1]].astype(np.int64)
            reach *= 2
