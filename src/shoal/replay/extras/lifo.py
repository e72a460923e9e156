"""Newest first: a selector, and a table that is a stack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.types import Array

from ..description import Table
from ..limiters import Queue
from ..selectors import Fifo, InOrder, Ranked


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
