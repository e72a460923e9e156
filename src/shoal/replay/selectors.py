"""Which item comes next, for sampling and for removing: uniform, prioritised, FIFO; others are in `extras`.

The small classes a table is described with (`Uniform()`, `Prioritized(0.6)`, …) start a running selector that is told
of every item that comes, goes or changes. There are two kinds: a *ranked* one has a definite order, a *drawn* one
chooses at random. Both read the table's arrays of keys (0 where a slot is empty, rising with the order of
insertion) and priorities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.types import Array

from .numbers import check_number
from .sumtree import SumTree

_LARGEST_EXPONENT = 8.0  # beyond any use; the largest priority to this power, times all items, is still finite


class RunningSelector(ABC):
    """A running selector; it is told of items after they came or changed, and before they go."""

    item_bytes = 0  # memory that it needs per item

    @abstractmethod
    def insert(self, slots: Array, place: Array | slice) -> None:
        """`place` is the slots once more, as a slice where they are neighbours."""

    @abstractmethod
    def remove(self, slots: Array, place: Array | slice, foremost: bool) -> None:
        """`foremost`: they are what `Ranked.first` has just given, all of it."""

    @abstractmethod
    def update(self, slots: Array) -> None: ...

    def saved_order(self) -> Array | None:
        """The order in which to insert all slots into a new selector to make it choose alike; None: oldest first."""
        return None


class Ranked(RunningSelector):
    @abstractmethod
    def first(self, count: int) -> Array:
        """The `count` foremost slots in order, or all there are."""


class Drawn(RunningSelector):
    @abstractmethod
    def draw(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Independent slots, with replacement, and the probability of each."""

    @abstractmethod
    def mass(self) -> float:
        """What probabilities are relative to."""


class Selector(Protocol):
    """What a table is described with; the same ones are equal."""

    def start(self, keys: Array, priorities: Array) -> Ranked | Drawn: ...


@dataclass(frozen=True)
class Uniform:
    """Every item with the same probability."""

    def start(self, keys: Array, priorities: Array) -> Drawn:
        return _Members(len(keys))


@dataclass(frozen=True)
class Prioritized:
    """With probability priority**exponent / sum; uniformly when every priority is zero.

    An item of priority zero is never drawn while others are above it, but for an exponent of 0: it waits for a new
    priority, or to be removed. A law that should draw everything again some time adds a floor.
    """

    exponent: float = 0.6

    def __post_init__(self) -> None:
        check_number("exponent of Prioritized", self.exponent, 0.0, _LARGEST_EXPONENT)

    def start(self, keys: Array, priorities: Array) -> Drawn:
        return _Weighted(self.exponent, keys, priorities)


@dataclass(frozen=True)
class Fifo:
    """The item inserted first."""

    def start(self, keys: Array, priorities: Array) -> Ranked:
        return _Oldest(len(keys))


class _Members(Drawn):
    """The occupied slots side by side; the last ones fill the holes that removal leaves."""

    item_bytes = 8

    def __init__(self, slots: int) -> None:
        self._slots = np.empty(slots, np.int32)
        self._place = np.empty(slots, np.int32)
        self._size = 0

    def insert(self, slots: Array, place: Array | slice) -> None:
        end = self._size + len(slots)
        self._slots[self._size : end] = slots
        self._place[place] = np.arange(self._size, end)
        self._size = end

    def remove(self, slots: Array, place: Array | slice, foremost: bool) -> None:
        left = self._size - len(slots)
        holes = self._place[slots]
        in_tail = holes >= left
        stays = np.ones(len(slots), bool)
        stays[holes[in_tail] - left] = False
        movers = self._slots[left : self._size][stays]
        holes = holes[~in_tail]
        self._slots[holes] = movers
        self._place[movers] = holes
        self._size = left

    def update(self, slots: Array) -> None:
        pass

    def saved_order(self) -> Array:
        return self._slots[: self._size]

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        slots = self._slots.take(generator.integers(0, self._size, count)).astype(np.int64)
        return slots, np.full(count, 1.0 / self._size)

    def mass(self) -> float:
        return float(self._size)


class _Weighted(Drawn):
    item_bytes = 16

    def __init__(self, exponent: float, keys: Array, priorities: Array) -> None:
        self._exponent = exponent
        self._keys = keys
        self._priorities = priorities
        self._tree = SumTree(len(keys))
        # Weights are entered into the tree before the next draw: one that came and went meanwhile costs nothing, and
        # slots that are filled in order become one range.
        self._ranges: list[tuple[int, int]] = []
        self._scattered: list[Array] = []
        self._changes = 0

    def insert(self, slots: Array, place: Array | slice) -> None:
        if not isinstance(place, slice):
            self._scattered.append(slots)
        elif self._ranges and place.start == self._ranges[-1][1]:
            self._ranges[-1] = (self._ranges[-1][0], place.stop)
        elif not self._ranges or place.start < self._ranges[-1][0] or place.stop > self._ranges[-1][1]:
            self._ranges.append((place.start, place.stop))
        self._changes += len(slots)
        if self._changes > 2 * len(self._keys):  # more than there are: all of them
            self._ranges, self._scattered, self._changes = [(0, len(self._keys))], [], 0

    def update(self, slots: Array) -> None:
        self.insert(slots, slots)

    def remove(self, slots: Array, place: Array | slice, foremost: bool) -> None:
        self.insert(slots, place)

    def _settle(self) -> None:
        for first, end in self._ranges:
            self._tree.set_range(first, end, self._weights(slice(first, end)))
        if self._scattered:
            slots = np.concatenate(self._scattered) if len(self._scattered) > 1 else self._scattered[0]
            self._tree.set(slots, self._weights(slots))
        self._ranges, self._scattered, self._changes = [], [], 0

    def _weights(self, place: Array | slice) -> Array:
        there: Array = self._keys[place] != 0
        priorities = self._priorities[place]
        if len(priorities) and (priorities == priorities[0]).all():  # as of a writer that gives none; powers take long
            alike: Array = there * priorities[0] ** self._exponent
            return alike
        weights: Array = priorities**self._exponent
        weights *= there
        return weights

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        self._settle()
        total = self._tree.total
        if total > 0.0:
            slots, weights = self._tree.draw(count, generator)
            weights /= total
            return slots, weights
        there = np.flatnonzero(self._keys)
        return generator.choice(there, count), np.full(count, 1.0 / len(there))

    def mass(self) -> float:
        self._settle()
        return self._tree.total


class InOrder(Ranked):
    """Slots in the order in which they were filled. A removed one stays in the list, marked, until an end passes it."""

    item_bytes = 12

    def __init__(self, slots: int) -> None:
        self._list = np.empty(2 * slots + 16, np.int32)
        self._place = np.zeros(slots, np.int32)  # where in the list, 0 when not there
        self._head = 1
        self._tail = 1
        self._gaps = 0  # marked entries between head and tail

    def insert(self, slots: Array, place: Array | slice) -> None:
        if self._tail + len(slots) > len(self._list):
            self._close_gaps()
        end = self._tail + len(slots)
        self._list[self._tail : end] = slots
        self._place[place] = np.arange(self._tail, end)
        self._tail = end

    def remove(self, slots: Array, place: Array | slice, foremost: bool) -> None:
        if foremost and not self._gaps:
            self._pass(len(slots))
        else:
            self._place[place] = 0
            self._gaps += len(slots)

    @abstractmethod
    def _pass(self, count: int) -> None:
        """Let so many go from the end that is foremost."""

    def update(self, slots: Array) -> None:
        pass

    def _close_gaps(self) -> None:
        slots = self._list[self._head : self._tail]
        slots = slots[self._place[slots] == np.arange(self._head, self._tail)]
        self._head, self._tail = 1, 1 + len(slots)
        self._list[1 : self._tail] = slots
        self._place[slots] = np.arange(1, self._tail)
        self._gaps = 0


class _Oldest(InOrder):
    def _pass(self, count: int) -> None:
        self._head += count

    def first(self, count: int) -> Array:
        if not self._gaps:
            return self._list[self._head : min(self._tail, self._head + count)].astype(np.int64)
        reach = count
        while True:
            end = min(self._tail, self._head + reach)
            slots = self._list[self._head : end]
            present = self._place[slots] == np.arange(self._head, end)
            if present.all():
                return slots.astype(np.int64)
            found = np.flatnonzero(present)
            if len(found) >= count or end == self._tail:
                passed = int(found[0]) if len(found) else end - self._head
                self._head += passed
                self._gaps -= passed
                return slots[found[:count]].astype(np.int64)
            reach *= 2
