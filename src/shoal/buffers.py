"""Memory for arrays that is used again: blocks come back by themselves when the last array on them is gone.

A fresh allocation of a few megabytes costs page faults that take longer than filling it. `empty` hands out arrays
from the arena of the call being served (so that a result is already in memory the caller can see) or, outside of a
served call, from an arena of this process.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL = 1 << 14  # below this a plain allocation is faster
_ALIGN = 64


class ArenaArray(np.ndarray[Any, Any]):
    """A piece of an arena, kept alive by every array that is made from it."""


class Segment:
    """One mapped stretch of memory out of which blocks are cut, front to back."""

    def __init__(self, index: int, memory: mmap.mmap) -> None:
        self.index = index
        self.memory = memory
        self.bytes = np.frombuffer(memory, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]
        self.used = 0

    def __len__(self) -> int:
        return len(self.bytes)


def private_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Arena:
    """Hands out blocks from a few large segments and takes each back when nothing refers to it any more."""

    def __init__(self, memory: Callable[[int], mmap.mmap] = private_memory, limit: int = 1 << 32) -> None:
        self._memory = memory
        self._limit = limit
        self._free: dict[int, list[tuple[Segment, int]]] = {}
        self._live: dict[int, tuple[weakref.ref[ArenaArray], int, tuple[Segment, int]]] = {}
        self._lock = threading.Lock()
        self.segments: list[Segment] = []
        self.reserved = 0

    def block(self, size: int) -> ArenaArray | None:
        """`size` bytes, or None when the arena's limit is reached."""
        rounded = _round(size)
        free = self._free.get(rounded)
        place = None
        if free:
            try:
                place = free.pop()  # atomic: finalizers append from any thread
            except IndexError:
                place = None
        if place is None:
            place = self._cut(rounded)
            if place is None:
                return None
        segment, offset = place
        block = ArenaArray(size, np.uint8, segment.memory, offset)  # on the mapping itself: a base numpy will not skip
        reference = weakref.ref(block, self._reclaim)
        self._live[id(reference)] = (reference, rounded, place)
        return block

    def _reclaim(self, gone: weakref.ref[ArenaArray]) -> None:
        _, rounded, place = self._live.pop(id(gone))
        self._free.setdefault(rounded, []).append(place)

    def _cut(self, size: int) -> tuple[Segment, int] | None:
        with self._lock:
            segment = self.segments[-1] if self.segments else None
            if segment is None or segment.used + size > len(segment):
                length = max(size, min(1 << 24, max(1 << 20, self.reserved)))
                if self.reserved + length > self._limit:
                    return None
                segment = Segment(len(self.segments), self._memory(length))
                self.segments.append(segment)
                self.reserved += length
            offset = segment.used
            segment.used += size
            return segment, offset

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < SMALL:
            return np.empty(shape, kind)
        block = self.block(size)
        if block is None:
            return np.empty(shape, kind)
        return np.frombuffer(block, kind).reshape(shape)

    def locate(self, address: int, size: int) -> tuple[int, int] | None:
        """(segment, offset) of memory that lies in this arena."""
        for segment in self.segments:
            start = address - segment.address
            if start >= 0 and start + size <= len(segment):
                return segment.index, start
        return None


def _round(size: int) -> int:
    """Up to the next of eight steps per power of two, so that nearly equal sizes share a free list."""
    step = max(_ALIGN, 1 << max(0, (size - 1).bit_length() - 4))
    return -(-size // step) * step


_process_arena = Arena()


class _Local(threading.local):
    arena: Arena | None = None  # of the call being served


_local = _Local()


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array in reused memory; inside a served call, memory that the caller sees too."""
    return (_local.arena or _process_arena).empty(shape, dtype)


class serving:
    """Within this context `empty` allocates from `arena`."""

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena

    def __enter__(self) -> None:
        self._before = _local.arena
        _local.arena = self._arena

    def __exit__(self, *_: object) -> None:
        _local.arena = self._before
