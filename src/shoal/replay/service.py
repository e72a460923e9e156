"""The replay service: tables over shared rows, behind one lock, waiting where their limiters say so.

A plain object: use it in process, or give it to a runtime that serves its methods to other processes. Rows are copied
in and gathered outside of the lock; only bookkeeping happens inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import sync
from .checks import check_block, check_priorities, check_window
from .chunks import Piece, Schema, Store, Streams, schema_of, write
from .description import Table
from .errors import ReplayClosed, ReplayTimeout
from .limiters import Round
from .memory import Memory
from .messages import Array, Block, Inserted, Layout, Sample
from .tables import RunningTable
from .views import StoredRows


@dataclass
class _Arriving:
    """Items of a block on their way into a table."""

    start: Array  # addresses
    length: Array
    history: Array
    priorities: Array
    states: dict[str, Array]
    versions: Array | None  # only for a quota

    def pop(self, count: int) -> tuple[Array, Array, Array, Array, dict[str, Array]]:
        """Take the first `count` out."""
        taken = (self.start[:count], self.length[:count], self.history[:count], self.priorities[:count])
        states = {name: values[:count] for name, values in self.states.items()}
        self.start, self.length, self.history = self.start[count:], self.length[count:], self.history[count:]
        self.priorities = self.priorities[count:]
        self.states = {name: values[count:] for name, values in self.states.items()}
        return *taken, states


@dataclass
class _Writer:
    """What the service knows of a writer."""

    life: int
    sequence: int = -1  # of its newest block
    streams: Streams | None = None
    arriving: dict[str, _Arriving] = field(default_factory=dict)  # what limiters hold up of the newest block
    accepted: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    busy: bool = False  # a call is going on


class Replay:
    """Tables of experience.

    `chunk_length` is the longest item in rows (by default that of the first writer, at least 64); `directory` keeps
    rows in files instead of memory, for tables larger than memory; `seed` makes sampling reproducible.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        chunk_length: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        names = [table.name for table in tables]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a replay service needs one or more tables with different names, not {names}")
        seeds = np.random.SeedSequence(seed).spawn(len(names))
        self._tables = {
            table.name: RunningTable(table, np.random.default_rng(own)) for table, own in zip(tables, seeds)
        }
        self._chunk_length = chunk_length
        self._memory = Memory(directory)
        self._stores: dict[Schema, Store] = {}
        self._writers: dict[str, _Writer] = {}
        self._changed = sync.Condition()
        self._closed = False

    # Inserting

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        """Store a writer's rows and items; waits while limiters hold items back, at most `timeout` seconds.

        After a timeout the rows and the items so far are in; the same block sent again continues with the rest.
        """
        with self._changed:
            writer = self._writer(block)
            if writer.busy:
                self._wait(
                    lambda: not writer.busy, timeout, lambda: f"writer {block.writer!r} waits for its last insert"
                )
            if block.life < writer.life or block.sequence < writer.sequence:
                return Inserted({}, {}, repeated=True)
            again = block.sequence == writer.sequence
            if again and not writer.arriving:
                return Inserted({}, {}, repeated=True)
            if not again:
                check_block(block, writer.streams, self._tables)
                streams, pieces = self._make_room(writer, block)
            writer.busy = True
        try:
            if not again:
                write(streams.store, pieces, block.columns)
            with self._changed:
                if not again:
                    self._receive(writer, streams, block)
                self._admit(block, writer, timeout)
                return Inserted(dict(writer.accepted), dict(writer.refused))
        finally:
            with self._changed:
                writer.busy = False
                self._changed.notify_all()

    def _writer(self, block: Block) -> _Writer:
        self._open()
        writer = self._writers.get(block.writer)
        if writer is None or block.life > writer.life:
            self._forget(block.writer)
            writer = self._writers[block.writer] = _Writer(block.life)
        return writer

    def _make_room(self, writer: _Writer, block: Block) -> tuple[Streams, list[Piece]]:
        streams = writer.streams
        rows, environments = next(iter(block.columns.values())).shape[:2]
        if streams is None or streams.rows != block.first_row:  # new, or a call was lost with a restart of the service
            schema = schema_of(block.columns)
            store = self._stores.get(schema)
            if store is None:
                length = self._chunk_length or max(64, block.window)
                store = Store(schema, length, self._memory)
            check_window(block, store)
            self._stores[schema] = store
            if streams is not None:
                streams.close()
            streams = writer.streams = Streams(store, environments, block.first_row)
        return streams, streams.reserve(rows)

    def _receive(self, writer: _Writer, streams: Streams, block: Block) -> None:
        """Rows are in their places: take down what is to be inserted."""
        for name, left in writer.arriving.items():  # the writer gave up on these after a timeout
            self._tables[name].refused += len(left.start)
        writer.arriving, writer.accepted, writer.refused = {}, {}, {}
        writer.sequence = block.sequence
        for name, items in block.items.items():
            table, spans, priorities, states = self._tables[name], items.spans, items.priorities, items.states
            table.bind(items.view, streams.store, states)
            writer.accepted[name] = writer.refused[name] = 0
            lost = spans.start < streams.first_row
            if lost.any():
                kept = ~lost
                spans = spans.select(kept)
                priorities = priorities[kept]
                states = {column: values[kept] for column, values in states.items()}
                self._refuse(writer, name, int(lost.sum()))
            if not len(spans):
                continue
            start = streams.addresses(spans.environment, spans.start)
            versions = None
            if isinstance(table.limiter, Round):
                versions = streams.store.columns["version"][
                    streams.addresses(spans.environment, spans.start + spans.length - 1)
                ]
            writer.arriving[name] = _Arriving(start, spans.length, spans.history, priorities, states, versions)

    def _admit(self, block: Block, writer: _Writer, timeout: float | None) -> None:
        """Insert what limiters allow, and wait for the rest."""
        deadline = None
        while True:
            for name in list(writer.arriving):
                self._admit_into(name, block.writer, writer)
            if not writer.arriving:
                break
            self._changed.notify_all()
            deadline = deadline if timeout is None or deadline is not None else sync.monotonic() + timeout
            left = None if deadline is None else max(0.0, deadline - sync.monotonic())
            self._wait(lambda: self._any_insertable(writer), left, lambda: self._who_inserts(block.writer, writer))
        if writer.streams is not None:
            writer.streams.forget(block.window)

    def _any_insertable(self, writer: _Writer) -> bool:
        tables = [self._tables[name] for name in writer.arriving]
        return any(table.limiter.insertable(table.counts, 1) > 0 for table in tables)

    def _admit_into(self, name: str, writer_name: str, writer: _Writer) -> None:
        table, arriving = self._tables[name], writer.arriving[name]
        count = len(arriving.start)
        if isinstance(table.limiter, Round) and arriving.versions is not None:
            allowed, opens = table.limiter.admit(writer_name, arriving.versions)
            if opens:
                table.shrink(0)
            self._refuse(writer, name, count - allowed)
        else:
            allowed = table.limiter.insertable(table.counts, count)
        done = 0
        while done < allowed:
            step = table.room(allowed - done)
            table.insert(*arriving.pop(step))
            done += step
        writer.accepted[name] += allowed
        if allowed == count or table.limiter.refuses:
            del writer.arriving[name]

    def _refuse(self, writer: _Writer, name: str, count: int) -> None:
        writer.refused[name] += count
        self._tables[name].refused += count

    def _who_inserts(self, name: str, writer: _Writer) -> str:
        held = "; ".join(
            f"{len(arriving.start):,} items into table {table!r}, where {self._state(self._tables[table])}"
            for table, arriving in writer.arriving.items()
        )
        return f"writer {name!r} waits to insert {held}"

    def forget_writer(self, name: str) -> None:
        """Let go of the rows kept for items that a writer might still complete; call it when a writer is gone."""
        with self._changed:
            self._forget(name)

    def _forget(self, name: str) -> None:
        writer = self._writers.pop(name, None)
        if writer is not None and writer.streams is not None:
            writer.streams.close()

    # Sampling

    def sample(
        self,
        table: str,
        batch: int,
        *,
        timeout: float | None = None,
        layout: Layout = "time",
        minimum: int | None = None,
    ) -> Sample:
        """A batch of items: what the limiter allows of it, once that is `minimum` or more (by default all of it).

        `layout` is [time, batch, ...] or [batch, time, ...].
        """
        running = self._table(table)
        least = batch if minimum is None else minimum
        self._check_sample(running, batch, least, layout)
        with self._changed:
            self._open()
            if self._sampleable(running, batch) < least:
                self._wait(
                    lambda: self._sampleable(running, batch) >= least,
                    timeout,
                    lambda: f"a reader waits for {least:,} items of table {table!r}, where {self._state(running)}",
                )
            store, view = running.store, running.view
            assert store is not None  # there are items
            assert view is not None
            size, mass = running.size, running.mass()
            chosen = running.sample(self._sampleable(running, batch))
            names = [name for name in store.columns if not running.wanted or name in running.wanted]
            rows = StoredRows(store, names, chosen.start, chosen.length, chosen.history)
            ticket = store.begin_reading()
            self._changed.notify_all()
        try:
            data, windows = view.gather(rows, layout)
        finally:
            with self._changed:
                store.end_reading(ticket)
        data.update(chosen.states)
        return Sample(
            arrays=data,
            keys=chosen.keys,
            probabilities=chosen.probabilities,
            priorities=chosen.priorities,
            times_sampled=chosen.times_sampled,
            table_size=size,
            mass=mass,
            layout=layout,
            windows=windows,
        )

    def _sampleable(self, table: RunningTable, batch: int) -> int:
        return min(table.limiter.sampleable(table.counts, batch), table.available())

    def _check_sample(self, table: RunningTable, batch: int, least: int, layout: Layout) -> None:
        name = table.description.name
        if layout not in ("time", "batch"):
            raise ValueError(f"layout={layout!r} is neither 'time' nor 'batch'")
        if not 1 <= least <= batch:
            raise ValueError(f"a sample of table {name!r} needs 1 <= minimum <= batch, not {least} and {batch}")
        capacity = table.description.capacity * max(1, table.description.max_times_sampled)
        possible = min(capacity, table.limiter.largest_sample(table.description.capacity))
        if least > possible:
            raise ValueError(
                f"a sample of {least:,} can never come from table {name!r}, which gives at most {possible:,} at once "
                f"(capacity {table.description.capacity:,}, {table.description.limiter}); ask for less or enlarge those"
            )

    # Priorities

    def update_priorities(self, table: str, keys: Array, priorities: Array) -> int:
        """Set priorities by key; how many items were still there. The others are counted as stale and left alone."""
        running = self._table(table)
        keys, priorities = np.asarray(keys, np.int64), np.asarray(priorities, np.float64)
        if keys.ndim != 1 or keys.shape != priorities.shape:
            raise ValueError(
                f"table {table!r} was given keys of shape {keys.shape} and priorities of {priorities.shape}"
            )
        check_priorities(table, priorities)
        with self._changed:
            self._open()
            return len(running.update(keys, priorities))

    # Everything else

    def info(self) -> dict[str, dict[str, Any]]:
        """Plain numbers per table."""
        with self._changed:
            return {
                name: {
                    "size": table.size,
                    "capacity": table.description.capacity,
                    "inserts": table.counts.inserts,
                    "samples": table.counts.samples,
                    "deletes": table.deletes,
                    "refused": table.refused,
                    "stale_updates": table.stale_updates,
                }
                for name, table in self._tables.items()
            }

    def close(self) -> None:
        """Refuse calls from now on and wake everybody who waits with ReplayClosed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _table(self, name: str) -> RunningTable:
        table = self._tables.get(name)
        if table is None:
            raise ValueError(f"there is no table {name!r}; there are {', '.join(map(repr, self._tables))}")
        return table

    def _state(self, table: RunningTable) -> str:
        return table.limiter.state(table.counts)

    def _open(self) -> None:
        if self._closed:
            raise ReplayClosed("the replay service is closed")

    def _wait(self, predicate: Callable[[], bool], timeout: float | None, who: Callable[[], str]) -> None:
        """Wait with the lock held; `who` says who waits for what."""
        done = self._changed.wait_for(lambda: self._closed or predicate(), timeout, why=who())
        self._open()
        if not done:
            raise ReplayTimeout(f"after {timeout:g} s {who()}")
