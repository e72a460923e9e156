"""A naive replay table that does everything one item at a time, and an audit of the real one's references."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.replay import (
    Appended,
    Fifo,
    MinSize,
    Prioritized,
    Queue,
    Quota,
    Replay,
    SamplesPerInsert,
    Spans,
    Table,
    Uniform,
)
from shoal.replay.extras import Extension, Lifo, MaxHeap, MinHeap
from shoal.replay.views import Whole

SELECTORS = (Uniform(), Prioritized(0.7), Fifo(), Lifo(), MinHeap(), MaxHeap())


@dataclass(frozen=True)
class Single:
    """Every row is an item of `length` rows that ends with it."""

    length: int = 1

    @property
    def rows(self) -> int:
        return self.length

    @property
    def view(self) -> Whole:
        return Whole(self.length)

    def spans(self, block: Appended) -> Spans:
        count, environments = block.valid.shape
        end = np.repeat(np.arange(block.first_row, block.first_row + count), environments)
        environment = np.tile(np.arange(environments), count)
        there = end >= self.length - 1
        end, environment = end[there], environment[there]
        sizes = np.full(len(end), self.length)
        return Spans(environment, end - self.length + 1, sizes, np.zeros_like(sizes))


@dataclass
class Item:
    row: float
    priority: float
    number: int  # of the insert
    times: int = 0
    key: int = -1


@dataclass
class Model:
    """What a table should hold."""

    table: Table
    items: list[Item] = field(default_factory=list)
    inserts: int = 0
    samples: int = 0
    refused: int = 0
    version: int | None = None
    admitted: int = 0
    writers: set[str] = field(default_factory=set)

    def may_insert(self) -> bool:
        limiter = self.table.limiter
        if isinstance(limiter, SamplesPerInsert):
            ahead = (self.inserts + 1 - limiter.min_size) * limiter.ratio - self.samples
            return len(self.items) < limiter.min_size or ahead <= limiter.error_buffer + 1e-9
        if isinstance(limiter, Queue):
            return len(self.items) < limiter.size
        return True

    def may_sample(self, size: int | None = None) -> bool:
        """`size` is what the table held when the batch began: minimum sizes are asked for then."""
        limiter = self.table.limiter
        if not self.items:
            return False
        size = len(self.items) if size is None else size
        if isinstance(limiter, MinSize):
            return size >= limiter.items
        if isinstance(limiter, SamplesPerInsert):
            ahead = (self.inserts - limiter.min_size) * limiter.ratio - (self.samples + 1)
            return size >= limiter.min_size and ahead >= -limiter.error_buffer - 1e-9
        if isinstance(limiter, Quota):
            return self.admitted >= limiter.items
        return True

    def ranked(self, selector: Any) -> list[Item] | None:
        """The items in the order of a selector, None when it chooses at random."""
        if isinstance(selector, Fifo):
            return sorted(self.items, key=lambda item: item.number)
        if isinstance(selector, Lifo):
            return sorted(self.items, key=lambda item: -item.number)
        if isinstance(selector, MinHeap):
            return sorted(self.items, key=lambda item: (item.priority, item.number))
        if isinstance(selector, MaxHeap):
            return sorted(self.items, key=lambda item: (-item.priority, item.number))
        return None

    def probability(self, item: Item) -> float:
        sampler = self.table.sampler
        if isinstance(sampler, Uniform):
            return 1 / len(self.items)
        if isinstance(sampler, Prioritized):
            total = math.fsum(each.priority**sampler.exponent for each in self.items)
            return item.priority**sampler.exponent / total if total > 0 else 1 / len(self.items)
        return 1.0

    def by_key(self, key: int) -> Item | None:
        return next((item for item in self.items if item.key == key), None)


class Deleted(Extension):
    """Remembers what happened since it was last read."""

    def __init__(self) -> None:
        self.inserted_keys: list[int] = []
        self.deleted_keys: list[int] = []

    def inserted(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.inserted_keys += keys.tolist()

    def deleted(self, table: str, keys: np.ndarray) -> None:
        self.deleted_keys += keys.tolist()


def audit(replay: Replay) -> None:
    """Every chunk has exactly the references that items and writers hold, and is free exactly when it has none."""
    intake = replay._intake
    for store in intake.stores.values():
        expected = np.zeros(store.fresh, int)
        for table in replay._tables.values():
            if table.store is store:
                np.add.at(expected, table.start[table.live()] >> store.shift, 1)
        for writer in intake.writers.values():
            if writer.streams is not None and writer.streams.store is store:
                np.add.at(expected, writer.streams.layers.ravel(), 1)
        np.testing.assert_array_equal(store.references[: store.fresh], expected)
        needed = expected > 0
        for table in replay._tables.values():  # what an item reaches into must be there too
            if table.store is store:
                start, length = table.start[table.live()], table.length[table.live()].astype(int)
                chunk, beyond = start >> store.shift, ((start & store.mask) + length - 1) >> store.shift
                assert (beyond <= store.reach).all()
                while len(chunk):
                    needed[chunk] = True
                    chunk, beyond = chunk[beyond > 0], beyond[beyond > 0] - 1
                    assert (store.following[chunk] != chunk).all()
                    chunk = store.following[chunk]
        may_stay, before = needed.copy(), np.arange(store.fresh)
        for _ in range(store.reach):
            before = store.previous[before]
            may_stay |= expected[before] > 0
        free = store._free[store._head : store._tail]
        assert not store._limbo
        assert len(np.unique(free)) == len(free)
        assert not needed[free].any(), "a chunk is free that an item reaches into"
        np.testing.assert_array_equal(np.sort(free), np.flatnonzero(~may_stay))
    for table in replay._tables.values():
        live = table.live()
        assert len(live) == table.size
        free = table._free[: table._free_count]
        assert sorted([*free, *live]) == list(range(table._fresh))
        limit = table.description.max_times_sampled
        if limit:
            assert table.uses_left == int((limit - table.times_sampled[live]).sum())
