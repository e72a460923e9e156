"""The replay service: tables over shared rows, behind one lock, waiting where their limiters say so.

A plain object: use it in process, or give it to a runtime that serves its methods to other processes. Large blocks are
copied in and large batches gathered outside of the lock; only bookkeeping and small copies happen inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from shoal.types import Array, Role

from .. import sync
from . import checkpoint
from .chunks import Store, write
from .contents import contents
from .description import Table
from .errors import ReplayClosed, ReplayTimeout
from .intake import Intake, KnownWriter
from .memory import Memory
from .messages import Block, Inserted, Layout, Mass, Sample
from .numbers import LONGEST_CHUNK, check_keys, check_priorities, check_timeout, check_whole
from .statistics import describe, waiting
from .tables import RunningTable, Watcher
from .views import StoredRows

_LARGE = 1 << 19  # bytes


class Replay:
    """Tables of experience.

    `chunk_length` is how many rows are stored and freed together (by default 64, fewer where rows are large). With a
    `directory`, rows are kept in files instead of memory, for tables larger than that. `seed` makes sampling
    reproducible.
    """

    role = Role.REPLAY
    in_turns = True  # callers are served one at a time, but for large copies: see decisions 0010 and 0011

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        chunk_length: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        extensions: Iterable[Watcher] = (),
        seed: int = 0,
    ) -> None:
        names = [table.name for table in tables]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a replay service needs one or more tables with different names, not {names}")
        if chunk_length is not None:
            check_whole("chunk_length", chunk_length, 1, LONGEST_CHUNK)
        check_whole("seed", seed, 0, 2**128)
        seeds = np.random.SeedSequence(seed).spawn(len(names))
        hooks = tuple(extensions)
        self._tables = {
            table.name: RunningTable(table, np.random.default_rng(own), hooks) for table, own in zip(tables, seeds)
        }
        self._memory = Memory(directory)
        self._intake = Intake(self._tables, self._memory, chunk_length)
        self._saving = sync.Condition()  # one save or load at a time
        self._saved: dict[Path, checkpoint.Saved] = {}
        self._changed = sync.Condition()
        self._waiting: list[Callable[[], bool]] = []  # what calls wait for at this moment
        self._readers = 0  # of these, calls that wait for items
        self._closed: set[str] = set()  # tables

    # Inserting

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        """Store a writer's rows and items; waits while limiters hold items back, at most `timeout` seconds.

        After a timeout the rows and the items so far are in; the same block sent again continues with the rest.
        """
        timeout = check_timeout(timeout)
        with self._changed:
            self._check_open(block.items)
            writer = self._intake.writer(block)
            if writer.busy:
                who = f"writer {block.writer!r} waits for its own last insert to end"
                self._wait(lambda: not self._intake.writer(block).busy, timeout, lambda: who, block.items)
                writer = self._intake.writer(block)
            if writer.has_received(block):
                self._intake.drop(block)
                return Inserted({}, {}, repeated=True)
            new = block.sequence > writer.sequence
            if new:
                streams, pieces = self._intake.reserve(writer, block)
            writer.busy = True
            try:
                if new:
                    with self._meanwhile(streams.store, sum([values.nbytes for values in block.columns.values()])):
                        write(streams.store, pieces, block.columns)
                    if writer.gone:
                        return Inserted({}, {name: len(items.spans) for name, items in block.items.items()})
                    self._intake.receive(writer, streams, block)
                self._admit(writer, timeout)
                if writer.streams is not None:
                    writer.streams.forget(block.window)
                return Inserted(writer.accepted, writer.refused, cut=writer.cut)
            finally:
                self._end_call(writer)

    def _end_call(self, writer: KnownWriter) -> None:
        writer.busy = False
        if writer.gone:
            self._intake.let_go(writer)
        self._notify()

    def _admit(self, writer: KnownWriter, timeout: float | None) -> None:
        """Let in what limiters allow, and wait until that is everything."""
        self._intake.admit(writer)
        if not writer.arriving:
            return
        deadline = None if timeout is None else sync.monotonic() + timeout
        while writer.arriving:
            self._notify()
            left = None if deadline is None else max(0.0, deadline - sync.monotonic())
            names = list(writer.arriving)
            with waiting([self._tables[name].statistics.insert_waits for name in names]):
                self._wait(
                    lambda: self._intake.can_admit(writer, together=not self._readers),
                    left,
                    lambda: self._intake.waits_for(writer),
                    names,
                    timeout,
                )
            if writer.gone:
                self._intake.give_up(writer)
            else:
                self._intake.admit(writer)

    def has_newest(self, writer: str, life: str) -> bool:
        """Whether what a writer has sent last is here as it was sent: it is not when this service has come back without
        it, or without the rows that its items begin in."""
        with self._changed:
            known = self._intake.writers.get(writer)
            return known is not None and known.life == life and not known.cut

    def forget_writer(self, name: str) -> None:
        """Let go of the rows kept for items that a writer might still complete; call it when a writer is gone."""
        with self._changed:
            self._intake.forget(name)
            self._notify()

    forget = forget_writer  # writers are called as their nodes are

    def set_quota(self, table: str, items: int) -> None:
        """From now on a round of this table needs so many items: writers have come or gone."""
        self._table(table)
        with self._changed:
            self._tables[table].set_quota(items)
            self._changed.notify_all()

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
        running.check_sample(batch, least, layout)
        timeout = check_timeout(timeout)
        batch = min(batch, running.description.slots * max(1, running.description.max_times_sampled))
        with self._changed:
            self._check_open([table])
            if running.sampleable(batch) < least:
                running.statistics.sample_waits.items = least
                with waiting([running.statistics.sample_waits]), self._reader():
                    self._wait(
                        lambda: self._tables[table].sampleable(batch) >= least,
                        timeout,
                        lambda: f"a reader waits for {least:,} items of table {table!r}, where {self._state(table)}",
                        [table],
                    )
            running = self._tables[table]  # another one if a checkpoint was loaded meanwhile
            store, view = running.bound()
            size, mass = running.size, running.mass()
            ticket = store.begin_reading()  # before items that are read for the last time let go of their rows
            chosen = running.sample(running.sampleable(batch))
            items = chosen.items
            rows = StoredRows(store, running.columns, items)
            self._notify()
            try:
                with self._meanwhile(store, len(items) * int(rows.length[0]) * store.row_bytes, alone=True):
                    arrays, windows = view.gather(rows, layout)
            finally:
                store.end_reading(ticket)
        timed = frozenset(arrays) if view.timed else frozenset()
        arrays.update(chosen.states)
        sample = Sample(
            arrays=arrays,
            keys=items["key"].copy(),  # of their own, not part of all that is known of the items
            probabilities=chosen.probabilities,
            priorities=items["priority"].copy(),
            times_sampled=items["times_sampled"].copy(),
            table_size=size,
            mass=mass,
            layout=layout,
            timed=timed,
            windows=windows,
        )
        if running.description.operations:
            data, has_time, bootstrap = dict(sample.data), set(timed), bool(getattr(view, "bootstrap", False))
            for operation in running.description.operations:
                operation.apply(data, has_time, layout, bootstrap)
            sample = sample.with_data(data, frozenset(has_time))
        return sample

    # Priorities

    def update_priorities(self, table: str, keys: Array, priorities: Array) -> int:
        """Set priorities by key; how many items were still there. The others are counted as stale and left alone."""
        self._table(table)
        keys, priorities = check_keys(table, keys), np.asarray(priorities, np.float64)
        if keys.shape != priorities.shape:
            raise ValueError(
                f"table {table!r} was given keys of shape {keys.shape} and priorities of {priorities.shape}"
            )
        check_priorities(table, priorities)
        with self._changed:
            self._check_open([table])
            return self._tables[table].update(keys, priorities)

    # Everything else

    def mass(self, table: str, wait: float = 0.0) -> Mass:
        """How much a table has to draw from: what a batch is spread over several services by.

        With `wait`, up to so many seconds until the limiter lets somebody sample.
        """
        self._table(table)
        seconds = check_timeout(wait)
        with self._changed:
            self._check_open([table])
            if wait is None or wait > 0.0:
                why = f"a reader waits for items of table {table!r}"
                with self._reader():
                    self._wait_until(lambda: self._tables[table].sampleable(1) > 0, seconds, why, [table])
            running = self._tables[table]
            return Mass(running.size, running.mass(), running.largest_sample, running.independent)

    def delete(self, table: str, keys: Array) -> int:
        """Remove items by key; how many were there."""
        self._table(table)
        with self._changed:
            self._check_open([table])
            running = self._tables[table]
            slots = running.find(np.unique(check_keys(table, keys)))
            slots = slots[slots >= 0]
            running.delete(slots)
            self._notify()
            return len(slots)

    def trim(self, table: str) -> int:
        """Remove what a soft capacity has let in beyond the capacity; how many items that were."""
        self._table(table)
        with self._changed:
            self._check_open([table])
            running = self._tables[table]
            count = running.shrink(running.description.capacity)
            self._notify()
            return count

    def info(self) -> dict[str, dict[str, Any]]:
        """Plain numbers per table."""
        with self._changed:
            return {name: describe(table) for name, table in self._tables.items()}

    def contents(self) -> dict[str, Any]:
        """All tables as plain data, to be compared with another replay's; not for large ones."""
        with self._changed:
            return contents(self._tables, self._intake)

    def save(
        self, path: str | os.PathLike[str], *, tag: str | None = None, keep: Collection[str] = ()
    ) -> dict[str, float]:
        """Save all tables to a directory, which holds the last complete save at any moment.

        Others go on meanwhile, but for the pause that is returned with the time and the bytes written. Saving to the
        same directory again writes only rows that are new. Saves of different `tag` share their rows; those of the
        tags in `keep` stay, and all others are removed once this one is complete.
        """
        place, name = Path(path).absolute(), checkpoint.manifest_name(tag)
        kept = [checkpoint.manifest_name(other) for other in keep]
        with self._saving:
            began = sync.monotonic()
            with self._changed:
                size = checkpoint.snapshot_size(self._tables)
            copier = checkpoint.Copier(size)
            with self._changed:
                paused = sync.monotonic()
                snapshot = checkpoint.take_snapshot(self._tables, self._intake, copier)
                pause = sync.monotonic() - paused
            try:
                before = self._saved.get(place, checkpoint.Saved())
                self._saved[place], written = checkpoint.save(place, snapshot, before, name, kept)
            finally:
                with self._changed:
                    for store, ticket in zip(snapshot.stores, snapshot.tickets):
                        store.end_reading(ticket)
            return {"seconds": sync.monotonic() - began, "pause_seconds": pause, "bytes": written}

    def load(self, path: str | os.PathLike[str], *, tag: str | None = None) -> None:
        """Replace all tables by those of a checkpoint once it is verified; BadCheckpoint leaves all as it is.

        Nothing in a checkpoint is ever executed: it may only name views that are known (`register_view`).
        """
        place, name = Path(path).absolute(), checkpoint.manifest_name(tag)
        with self._saving:
            loaded, tables = checkpoint.load(place, self._memory, self._tables, name)
            with self._changed:
                self._tables.update(tables)
                self._intake.restart(loaded.stores, loaded.writers, loaded.header["ended"])
                self._saved = {place: loaded.saved}
                self._changed.notify_all()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start from a save, of which the state says the folder and the tag: its rows are too many to be passed on."""
        self.load(state["path"], tag=state["tag"])

    def close(self, table: str | None = None) -> None:
        """Refuse calls to a table (by default to all) from now on, and wake everybody who waits with ReplayClosed."""
        names = self._tables if table is None else [self._table(table).description.name]
        with self._changed:
            self._closed.update(names)
            self._changed.notify_all()

    def _table(self, name: str) -> RunningTable:
        table = self._tables.get(name)
        if table is None:
            raise ValueError(f"there is no table {name!r}; there are {', '.join(map(repr, self._tables))}")
        return table

    def _state(self, table: str) -> str:
        return self._tables[table].state()

    def _check_open(self, tables: Iterable[str]) -> None:
        if self._closed:
            if len(self._closed) == len(self._tables):
                raise ReplayClosed("the replay service is closed")
            for name in tables:
                if name in self._closed:
                    raise ReplayClosed(f"table {name!r} of the replay service is closed")

    def _meanwhile(self, store: Store, size: int, *, alone: bool = False) -> AbstractContextManager[None]:
        """Around a copy of `size` bytes, with the lock held: a large one lets others go on, and one that may have to
        wait for the disk; a small one takes less time than a change of threads does."""
        return self._beside_others(alone) if size >= _LARGE or store.files else nullcontext()

    @contextmanager
    def _beside_others(self, alone: bool) -> Iterator[None]:
        with self._changed.released():
            sync.work_beside_others(alone=alone)
            yield

    def _notify(self) -> None:
        """Something has changed that somebody may wait for: to wake a thread for nothing costs as much as a batch."""
        if any(predicate() for predicate in self._waiting):
            self._changed.notify_all()

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """Around a wait for items: those that are held until all of a block may come in (`Intake.can_admit`) come in
        one by one meanwhile."""
        self._readers += 1
        self._notify()
        try:
            yield
        finally:
            self._readers -= 1

    def _wait_until(
        self, predicate: Callable[[], bool], timeout: float | None, why: str, tables: Collection[str]
    ) -> bool:
        """Wait with the lock held, until the predicate holds or one of the tables is closed."""

        def over() -> bool:
            return predicate() or not self._closed.isdisjoint(tables)

        self._waiting.append(over)
        try:
            done = self._changed.wait_for(over, timeout, why)
        finally:
            self._waiting.remove(over)
        self._check_open(tables)
        return done

    def _wait(
        self,
        predicate: Callable[[], bool],
        timeout: float | None,
        who: Callable[[], str],
        tables: Collection[str],
        named_timeout: float | None = None,
    ) -> None:
        """As `_wait_until`, with a ReplayTimeout that says who waits for what."""
        if not self._wait_until(predicate, timeout, who(), tables):
            raise ReplayTimeout(f"after {timeout if named_timeout is None else named_timeout:g} s {who()}")
