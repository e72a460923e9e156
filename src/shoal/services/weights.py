"""Versioned weights: a learner publishes, readers ask for "newer than v" and pay almost nothing when there is none."""

from __future__ import annotations

import copy
import fcntl
import json
import mmap
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.program import futures
from shoal.state import Scope, State
from shoal.sync import Condition, monotonic
from shoal.types import Arrays, Columns, Role
from shoal.versions import NONE, number

ANNOUNCE_EVERY = 0.25  # seconds after which the store hears of versions though nobody waits for one
LOOK = 0.1  # seconds after which who waits looks for himself


class SharedWeights:
    """The store's client on one machine: three buffers in shared memory and a counter; no call is made to read.

    The writer fills the buffer that no current reader uses and then raises the counter. A reader copies the newest
    buffer and looks at the counter again: if two more versions have come meanwhile, it starts over. This leans on
    the store ordering of x86; elsewhere the store is called instead. Writers exclude each other by a lock on the
    memory's file, which the kernel releases when its holder dies.

    Who waits for a version says so in the memory and then waits in the store, to which the writer announces what it
    has published: only then, since a call wakes another process, for longer than a small network's copy takes.
    """

    _HEAD = 4096

    def __init__(self, store: Any, fd: int) -> None:
        self.store = store
        self._fd = fd
        # count, bytes of a buffer, bytes of the layout, 3 versions, whether somebody waits
        self._header: npt.NDArray[np.int64] | None = None
        self._slots: list[Columns] = []
        self.announced = NONE  # the newest version of which this writer has told the store
        self._next_announcement = 0.0

    def publish(self, weights: Arrays, version: int) -> None:
        with self._exclusively():
            self._write(weights, version)
        self._announce(version)

    def compare_and_set(self, weights: Arrays, expected: int, version: int) -> bool:
        """Publish only if the newest version is still `expected`; whether it was."""
        with self._exclusively():
            if self._newest() != expected:
                return False
            self._write(weights, version)
        self._announce(version)
        return True

    def _write(self, weights: Arrays, version: int) -> None:
        if self._header is None:
            self._create(weights)
        assert self._header is not None
        count = int(self._header[0])
        slot = self._slots[count % 3]
        for name, value in weights.items():
            np.copyto(slot[name], value)
        self._header[3 + count % 3] = version
        self._header[0] = count + 1

    def _announce(self, version: int) -> None:
        """Tell the store where somebody waits for it, and now and then: it may have been lost."""
        assert self._header is not None
        now = monotonic()
        if self._header[6] or now >= self._next_announcement:
            self._header[6] = 0
            self.announced, self._next_announcement = version, now + ANNOUNCE_EVERY
            futures(self.store).announce(version)

    def newer(self, than: int = NONE) -> tuple[int, Columns] | None:
        """(version, weights) when there is a newer version; the arrays are the caller's own."""
        header = self._header
        if header is None:
            if not self._map():
                return None
            header = self._header
            assert header is not None
        while count := int(header[0]):
            slot = (count - 1) % 3
            version = int(header[3 + slot])
            if version <= than:
                return None
            weights = {name: value.copy() for name, value in self._slots[slot].items()}
            if int(header[0]) <= count + 1:
                return version, weights
        return None

    def wait(self, than: int = NONE, timeout: float | None = None) -> tuple[int, Columns] | None:
        """As `newer`, but waits for it."""
        end = None if timeout is None else monotonic() + timeout
        while (found := self.newer(than)) is None:
            if self._header is not None:
                self._header[6] = 1
                if (found := self.newer(than)) is not None:  # published before the writer could see it
                    break
            asked = monotonic()
            patience = LOOK if end is None else max(0.0, min(LOOK, end - asked))
            if not self.store.reached(than, patience):
                now = monotonic()
                if now < asked + patience or (end is not None and now >= end):  # it was closed, or time is over
                    return self.newer(than)
        return found

    def version(self) -> int:
        return self._newest()

    def keep_snapshot(self, node: str, state: Any) -> None:
        """See `WeightStore`; nothing waits for it."""
        futures(self.store).keep_snapshot(node, state)

    def kept_snapshot(self, node: str) -> Any:
        return self.store.kept_snapshot(node)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the lock of the memory's file, which tells processes and threads apart.

        It belongs to a file opened for this alone: `_fd` may be shared with other processes, and a POSIX lock on it
        would be dropped as soon as this process closes any descriptor of the file, as mapping it does.
        """
        own = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR)
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(own, fcntl.LOCK_UN)  # also where a fork has taken the descriptor along
        finally:
            os.close(own)

    def _newest(self) -> int:
        if self._header is None and not self._map():
            return NONE
        assert self._header is not None
        count = int(self._header[0])
        return int(self._header[3 + (count - 1) % 3]) if count else NONE

    def _create(self, weights: Arrays) -> None:
        if self._map():
            return
        layout, size = [], 0
        for name, value in weights.items():
            layout.append((name, value.dtype.str, value.shape, size))
            size += -(-value.nbytes // 64) * 64
        text = json.dumps(layout).encode()
        os.ftruncate(self._fd, self._HEAD + 3 * size + len(text))
        with mmap.mmap(self._fd, 0) as memory:
            memory[self._HEAD + 3 * size :] = text
            header = np.frombuffer(memory, np.int64, 8)
            header[2] = len(text)
            header[1] = size  # last: a reader that sees it sees the rest
            del header
        self._map()

    def _map(self) -> bool:
        if os.fstat(self._fd).st_size == 0:
            return False
        memory = mmap.mmap(self._fd, 0)
        header = np.frombuffer(memory, np.int64, 8)
        size, text = int(header[1]), int(header[2])
        if not text or (not size and not header[0]):
            return False
        layout = json.loads(memory[self._HEAD + 3 * size : self._HEAD + 3 * size + text])
        for index in range(3):
            base = self._HEAD + index * size
            self._slots.append(
                {
                    name: np.ndarray(tuple(shape), np.dtype(kind), memory, base + offset)
                    for name, kind, shape, offset in layout
                }
            )
        self._header = header
        return True


class WeightStore:
    """The newest weights and their version."""

    role = Role.WEIGHTS
    restart = True  # what is shared survives it, and the learner brings the rest (`loops/keeper.py`)

    if platform.machine() in ("x86_64", "AMD64"):
        shared_client = SharedWeights

    def __init__(self) -> None:
        self._changed = Condition()
        self._version = NONE
        self._weights: Columns = {}
        self._snapshots: dict[str, Any] = {}  # by node
        self._closed = False

    def publish(self, weights: Arrays, version: int) -> None:
        kept = {name: np.array(value) for name, value in weights.items()}
        with self._changed:
            self._weights = kept
            self._version = version
            self._changed.notify_all()

    def compare_and_set(self, weights: Arrays, expected: int, version: int) -> bool:
        """Publish only if the newest version is still `expected`; whether it was."""
        with self._changed:
            if self._version != expected:
                return False
            self.publish(weights, version)
            return True

    def announce(self, version: int) -> None:
        """The weights of this version are in shared memory: wake those who wait for them."""
        with self._changed:
            self._version = max(self._version, version)  # those of several writers may arrive in another order
            self._changed.notify_all()

    def newer(self, than: int = NONE) -> tuple[int, Columns] | None:
        """(version, weights) when there is a version newer than `than`."""
        with self._changed:
            return (self._version, self._weights) if self._version > than else None

    def wait(self, than: int = NONE, timeout: float | None = None) -> tuple[int, Columns] | None:
        """As `newer`, but waits for it, at most `timeout` seconds."""
        return self.newer(than) if self.reached(than, timeout) else None

    def reached(self, than: int, timeout: float | None = None) -> bool:
        """Wait until the version is newer than `than`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._version > than or self._closed, timeout, f"weights newer than version {number(than)}"
            )
            return self._version > than

    def version(self) -> int:
        return self._version

    def keep_snapshot(self, node: str, state: Any) -> None:
        """Keep a node's own state, as a checkpoint has it, for its next life."""
        kept = copy.deepcopy(state)  # the arrays of a message are the sender's memory
        with self._changed:
            self._snapshots[node] = kept

    def kept_snapshot(self, node: str) -> Any:
        """What was kept of it last; None before."""
        with self._changed:
            return self._snapshots.get(node)

    def state_dict(self, scope: Scope = "own") -> State:
        """The version and the weights published through this object, and the snapshots kept; arrays and numbers."""
        with self._changed:
            return {
                "version": self._version,
                "weights": {name: value.copy() for name, value in self._weights.items()},
                "snapshots": copy.deepcopy(self._snapshots),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state; whoever waits for newer weights is woken."""
        with self._changed:
            self._version = int(state["version"])
            self._weights = {name: np.array(value) for name, value in state["weights"].items()}
            self._snapshots = copy.deepcopy(dict(state["snapshots"]))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
