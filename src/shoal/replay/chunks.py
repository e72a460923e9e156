"""Where rows live: chunks of consecutive rows of one environment, shared by every item that refers to them.

A store has one flat array per column. Row `t` of chunk `c` has the address `c * length + t` in each of them, and a
chunk knows which one continues its stream, so that an item is an address and a length. A chunk counts the items that
begin in it and the streams that keep it; it lives while there are any, or while one before it has some from where items
may reach into it. It is used again after that, but not before every gather that began earlier is finished.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.types import Array

from .arrays import as_slice, distinct
from .memory import Memory

_ONE = np.int32(1)  # of the references' own type: anything else takes `ufunc.at` 25 times as long

Schema = tuple[tuple[str, tuple[int, ...], str], ...]  # (column, shape of one row, dtype), by name


def schema_of(columns: Mapping[str, Array]) -> Schema:
    """The columns of [T, B, ...] arrays, without the two leading axes."""
    return tuple((name, columns[name].shape[2:], columns[name].dtype.str) for name in sorted(columns))


def row_bytes(schema: Schema) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize for _, shape, kind in schema)


def chunk_length_for(schema: Schema) -> int:
    """Rows per chunk: 64, fewer where rows are large, since a chunk is freed as a whole."""
    return max(8, min(64, _CHUNK_BYTES // max(1, row_bytes(schema))))


_CHUNK_BYTES = 1 << 16
_UNITS = {2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}


class Store:
    """Chunks of all writers whose rows have the same columns."""

    def __init__(self, schema: Schema, length: int, memory: Memory) -> None:
        self.schema = schema
        self.length = 1 << max(0, length - 1).bit_length()  # a power of two: addresses split by shift and mask
        self.shift = self.length.bit_length() - 1
        self.mask = self.length - 1
        self.row_bytes = row_bytes(schema)
        self.reach = 0  # chunks that an item may lie in beyond its first
        self.limit = max(2, memory.limit() // (max(self.row_bytes, 16) * self.length))  # in chunks
        self.columns: dict[str, Array] = {}  # [rows, ...]
        self.chunks: dict[str, Array] = {}  # [chunks, length, ...], the same memory
        self.units: dict[str, tuple[Array, np.dtype[Any]]] = {}  # chunks with a plain dtype as large as a row, where
        # there is one: numpy copies those several times faster than rows of a few numbers
        self.files: dict[str, int] = {}
        while True:
            try:
                self._reserve(memory)
                break
            except (OSError, MemoryError):  # the process may not have as much address space as there is memory
                self._close_files()
                if self.limit < 1 << 10:
                    raise
                self.limit //= 2
        self._backed = 0 if self.files else self.limit  # chunks that the disk has promised room for
        self.fresh = 0  # chunks from here on were never used
        self._free = np.empty(1024, np.int64)  # chunks to use again, from head to tail, the first to be freed first:
        self._head = self._tail = 0  # those that were freed together stay neighbours
        self._ticket = 0
        self._open: dict[int, None] = {}
        self._limbo: deque[tuple[int, Array]] = deque()

    def _reserve(self, memory: Memory) -> None:
        """Address space for `limit` chunks."""
        for name, shape, kind in self.schema:
            dtype = np.dtype(kind)
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            mapping, descriptor = memory.reserve(self.limit * self.length * size)
            if descriptor is not None:
                self.files[name] = descriptor
            self.columns[name] = np.ndarray((self.limit * self.length, *shape), dtype, mapping)
            self.chunks[name] = self.columns[name].reshape(self.limit, self.length, *shape)
            if len(shape) == 1 and size in _UNITS:
                self.units[name] = (self.chunks[name].view(_UNITS[size])[..., 0], np.dtype(_UNITS[size]))
        self.references = np.zeros(self.limit, np.int32)  # items that begin in the chunk, and streams that keep it
        self.following = np.zeros(self.limit, np.int64)  # the chunk that continues the stream; itself: none yet
        self.previous = np.zeros(self.limit, np.int64)  # the one before; itself: there is none any more
        self.generations = np.zeros(self.limit, np.int32)  # how often the chunk was handed out
        self._marks = np.zeros(self.limit, np.int32)

    def _close_files(self) -> None:
        while self.files:
            os.close(self.files.popitem()[1])

    def __del__(self) -> None:
        if hasattr(self, "files"):
            self._close_files()

    @property
    def used(self) -> int:
        """Chunks that are referred to, or wait for a gather to end."""
        return self.fresh - (self._tail - self._head)

    @property
    def used_bytes(self) -> int:
        return self.used * self.length * self.row_bytes

    def allocate(self, count: int) -> Array:
        """`count` chunks with one reference each, in runs of neighbours where there are any."""
        from_free = min(count, self._tail - self._head)
        self._back(self.fresh + count - from_free)
        ids = self._free[self._head : self._head + from_free].copy()
        self._head += from_free
        if from_free < count:
            fresh = np.arange(self.fresh, self.fresh + count - from_free)
            self.fresh += len(fresh)
            ids = np.concatenate([ids, fresh]) if from_free else fresh
        self.references[ids] = 1
        self.generations[ids] += 1
        self.following[ids] = ids
        self.previous[ids] = ids
        return ids

    def fit(self, longest: int) -> None:
        """Be prepared for items of up to so many rows."""
        self.reach = max(self.reach, (self.length + longest - 2) >> self.shift)

    def _back(self, count: int) -> None:
        """See to it that there is room for the first `count` chunks."""
        if count > self.limit:
            raise self._full()
        if count > self._backed:  # a full disk must be an error here: when a page is written, it would be a signal
            ahead = min(self.limit, max(count, self._backed + (1 << 26) // (self.length * max(1, self.row_bytes))))
            for name, descriptor in self.files.items():
                size = self.chunks[name].strides[0]
                try:
                    os.posix_fallocate(descriptor, self._backed * size, max(1, (ahead - self._backed) * size))
                except OSError:
                    raise self._full() from None
            self._backed = ahead

    def _full(self) -> MemoryError:
        return MemoryError(
            f"replay holds {self.used:,} chunks of {self.length} rows and there is no room for more; "
            "lower the tables' capacity or give the service a directory on a larger disk"
        )

    def link(self, chunks: Array, following: Array) -> None:
        """Say which chunks continue the streams of these."""
        self.following[chunks] = following
        self.previous[following] = chunks

    def hold(self, chunks: Array) -> None:
        """Add a reference to each (a chunk may occur several times). What items reach into is held with it."""
        np.add.at(self.references, chunks, _ONE)

    def drop(self, chunks: Array) -> None:
        """Take a reference from each; free what has none left and into which no other reaches."""
        np.subtract.at(self.references, chunks, _ONE)
        ended = chunks[self.references[chunks] == 0]
        if len(ended):
            self._free_unheld(self._once(ended))

    def _free_unheld(self, ended: Array) -> None:
        """Free chunks whose last reference went and those that only these kept, unless others keep them."""
        unused = held_by = ended
        for _ in range(self.reach):
            behind = self.following[held_by]
            held_by = behind[(self.previous[behind] == held_by) & (behind != held_by)]
            idle = held_by[self.references[held_by] == 0]
            unused = self._once(np.concatenate([unused, idle])) if len(idle) else unused
        before = unused
        for _ in range(self.reach):
            before = self.previous[before]
            idle = self.references[before] == 0
            before, unused = before[idle], unused[idle]
        if len(unused):
            # `following` stays: a gather of items that were just removed still needs it
            behind = self.following[unused]
            behind = behind[self.previous[behind] == unused]
            self.previous[behind] = behind
            self.previous[unused] = unused
            if self._open:
                self._limbo.append((self._ticket, unused))
            else:
                self._release(unused)

    def _once(self, chunks: Array) -> Array:
        """Each of them once: of equals the last to leave its mark."""
        numbers = np.arange(len(chunks), dtype=np.int32)
        self._marks[chunks] = numbers
        once: Array = chunks[self._marks[chunks] == numbers]
        return once

    def _release(self, ids: Array) -> None:
        end = self._tail + len(ids)
        if end > len(self._free):
            free = self._free[self._head : self._tail]
            needed = len(free) + len(ids)
            if 2 * needed > len(self._free):
                self._free = np.empty(4 * needed, np.int64)
            self._free[: len(free)] = free
            self._head, self._tail, end = 0, len(free), needed
        self._free[self._tail : end] = ids
        self._tail = end

    def restore(self, following: Array) -> None:
        """Make chunks that a checkpoint fills; items then `hold` theirs, and `free_unreferenced` ends it."""
        self._back(len(following))
        self.fresh = len(following)
        self.following[: self.fresh] = following

    def free_unreferenced(self) -> None:
        """After a checkpoint was loaded: free what no item begins in or reaches into."""
        chunks = np.arange(self.fresh)
        self.previous[: self.fresh] = chunks
        reached = np.flatnonzero(self.references[: self.fresh])
        used = np.zeros(self.fresh, bool)
        used[reached] = True
        for _ in range(self.reach):
            behind = self.following[reached]
            linked = behind != reached
            self.previous[behind[linked]] = reached[linked]
            reached = behind[linked]
            used[reached] = True
        self._release(chunks[~used])

    def begin_reading(self) -> int:
        """A ticket: chunks freed from now on keep their contents until it is handed back."""
        self._ticket += 1
        self._open[self._ticket] = None
        return self._ticket

    def end_reading(self, ticket: int) -> None:
        del self._open[ticket]
        oldest = next(iter(self._open), self._ticket + 1)
        while self._limbo and self._limbo[0][0] < oldest:
            self._release(self._limbo.popleft()[1])

    def prefetch(self, name: str, addresses: Array) -> None:
        """Have rows that lie in a file read side by side, before a gather would fault on them one after the other."""
        column, descriptor = self.columns[name], self.files[name]
        size = column.strides[0]
        if size * addresses.size < mmap.PAGESIZE or not hasattr(os, "posix_fadvise"):
            return
        rows = distinct(addresses.ravel())
        begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)  # of runs of neighbours
        counts = np.diff(np.append(begins, len(rows)))
        for row, count in zip(rows[begins].tolist(), counts.tolist()):
            os.posix_fadvise(descriptor, row * size, count * size, os.POSIX_FADV_WILLNEED)

    def chain(self, start: Array) -> Array:
        """Where the chunks begin in which items from `start` may lie, [chunks, items]."""
        chunks = np.empty((self.reach + 1, len(start)), np.int64)
        np.right_shift(start, self.shift, out=chunks[0])
        for index in range(self.reach):
            self.following.take(chunks[index], 0, chunks[index + 1], "clip")
        chunks <<= self.shift
        return chunks


@dataclass(slots=True)
class Piece:
    """Rows `rows` of a block go to places `places` of one chunk per environment, or to several whole layers of them."""

    target: Array | slice  # chunks: [environments] or [layers, environments], or a slice where they are neighbours
    layers: int
    places: slice
    rows: slice


class Streams:
    """The environments of one writer: which chunks hold their newest rows, and how far those are filled."""

    def __init__(self, store: Store, environments: int, first_row: int) -> None:
        self.store = store
        self.environments = environments
        self.first_row = first_row  # rows before this one are not here
        self.rows = first_row  # number of the next row
        self.written = first_row  # rows before this one are in their places
        self._base = first_row  # row number of the first place of the first layer held
        self.layers = np.empty((0, environments), np.int64)  # chunks, one per environment for the same rows

    def saved(self) -> dict[str, int]:
        """What a checkpoint keeps beside the layers; rows that are being copied are not in it."""
        numbers = {"first_row": self.first_row, "rows": self.written, "base": self._base}
        return numbers | {"environments": self.environments}

    @staticmethod
    def restored(store: Store, numbers: Mapping[str, int], layers: Array) -> Streams:
        """Streams that go on where they were saved."""
        streams = Streams(store, numbers["environments"], numbers["first_row"])
        streams.rows = streams.written = numbers["rows"]
        streams._base, streams.layers = numbers["base"], layers.copy()
        store.hold(layers.ravel())
        return streams

    def reserve(self, count: int) -> list[Piece]:
        """Places for `count` more rows of every environment."""
        length, begin = self.store.length, self.rows - self._base
        end = begin + count
        missing = -(-end // length) - len(self.layers)
        if missing > 0:
            self._extend(missing)
        pieces = []
        at = begin
        while at < end:
            layer, place = at >> self.store.shift, at & self.store.mask
            whole = 0 if place else (end - at) // length  # layers
            rows = whole * length or min(length - place, end - at)
            chunks = self.layers[layer : layer + whole] if whole > 1 else self.layers[layer]
            target = as_slice(chunks.ravel())
            pieces.append(
                Piece(
                    target if isinstance(target, slice) else chunks,
                    max(1, whole),
                    slice(place, place + rows),
                    slice(at - begin, at - begin + rows),
                )
            )
            at += rows
        self.rows += count
        return pieces

    def _extend(self, count: int) -> None:
        """Hold `count` more layers."""
        allocated = self.store.allocate(count * self.environments).reshape(count, self.environments)
        joined = np.concatenate([self.layers[-1:], allocated])
        self.store.link(joined[:-1].ravel(), joined[1:].ravel())
        self.layers = np.concatenate([self.layers, allocated])

    def addresses(self, environment: Array, row: Array) -> Array:
        """Where these rows of these environments are stored."""
        length = self.store.length
        first_rows = np.arange(self._base, self._base + length * len(self.layers), length)
        begins = (self.layers << self.store.shift) - first_rows[:, None]  # address of a row = its number + this
        layer = (row - self._base) >> self.store.shift
        layer *= self.environments
        layer += environment
        addresses: Array = begins.take(layer)
        addresses += row
        return addresses

    def forget(self, window: int) -> None:
        """Let go of chunks whose rows no later item can refer to."""
        old = max(0, self.rows - window - self._base) >> self.store.shift
        old = min(old, len(self.layers) - 1)
        if old > 0:
            self._let_go(old)
        self.first_row = max(self.first_row, self._base)

    def close(self) -> None:
        self._let_go(len(self.layers))

    def _let_go(self, count: int) -> None:
        """Of the oldest layers."""
        gone, self.layers = self.layers[:count], self.layers[count:]
        self._base += count * self.store.length
        self.store.drop(gone.ravel())

    def growing(self) -> Array:
        """Chunks to which rows are still to be written."""
        return self.layers[(self.written - self._base) >> self.store.shift :].ravel()


def write(store: Store, pieces: list[Piece], columns: Mapping[str, Array]) -> None:
    """Copy the rows of a block to their places. Needs no lock: no item refers to these places yet."""
    for piece in pieces:
        for name, values in columns.items():
            stored, rows = store.chunks[name], values[piece.rows]
            if name in store.units and rows.flags.c_contiguous:
                stored, unit = store.units[name]
                rows = rows.view(unit)[..., 0]
            if piece.layers == 1:
                stored[piece.target, piece.places] = rows.swapaxes(0, 1)
                continue
            rows = rows.reshape(piece.layers, store.length, *rows.shape[1:]).swapaxes(1, 2)
            if isinstance(piece.target, slice):
                stored[piece.target].reshape(rows.shape)[:] = rows
            else:
                stored[piece.target] = rows
