"""Versioned weights: a learner publishes, readers ask for "newer than v" and pay almost nothing when there is none."""

from __future__ import annotations

import copy
import fcntl
import json
import mmap
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.program import futures
from shoal.retry import retry
from shoal.state import Scope, State
from shoal.sync import Condition, monotonic
from shoal.types import Arrays, Columns, Role
from shoal.versions import NONE, number

ANNOUNCE_EVERY = 0.25  # seconds after which the store hears of versions though nobody waits for one
LOOK = 0.1  # seconds after which who waits looks for himself
GLANCE = 0.002  # seconds between two looks at memory in which something is about to come
COMING = 1.0  # seconds after which a reader asks the store itself for what does not come


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
        # count, bytes of a buffer, bytes of the layout, 3 versions, whether somebody waits, what a relay's readers have
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

    def has_newer(self, than: int) -> bool:
        """Whether there is a newer version; where there is none, writers are told that somebody waits for it."""
        if self._newest() <= than and self._header is not None:
            self._header[6] = 1
        return self._newest() > than

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


class RelayedWeights(SharedWeights):
    """The store's client on another machine than its own: what a relay has brought is read from shared memory."""

    _HAVE = 7  # where in the header

    def publish(self, weights: Arrays, version: int) -> None:
        self.store.publish(weights, version)
        self.announced = version

    def compare_and_set(self, weights: Arrays, expected: int, version: int) -> bool:
        done = bool(self.store.compare_and_set(weights, expected, version))
        self.announced = version if done else self.announced
        return done

    def newer(self, than: int = NONE) -> tuple[int, Columns] | None:
        found = super().newer(than)
        if (header := self._header) is not None:
            has = than if found is None else found[0]
            if has > header[self._HAVE]:
                header[self._HAVE] = has  # of several readers at once any one's word will do
        return found

    def wait(self, than: int = NONE, timeout: float | None = None) -> tuple[int, Columns] | None:
        end = None if timeout is None else monotonic() + timeout
        while (found := self.newer(than)) is None:
            asked = monotonic()
            patience = COMING if end is None else max(0.0, min(COMING, end - asked))
            if self.store.reached(than, patience):
                return self._coming(than)
            now = monotonic()
            if now < asked + patience or (end is not None and now >= end):  # it was closed, or time is over
                return self.newer(than)
        return found

    def _coming(self, than: int) -> tuple[int, Columns] | None:
        """What the relay is about to bring."""
        deadline = monotonic() + COMING
        while (found := self.newer(than)) is None:
            if monotonic() > deadline:
                return self.store.newer(than)  # type: ignore[no-any-return]
            time.sleep(GLANCE)
        return found

    def bring(self, timeout: float) -> None:
        """For the relay: take the newest version from the store, once for all readers, as soon as one of them has what
        was brought before. A learner may publish faster than a network can carry."""
        newest = self._newest()
        if self._header is not None and self._header[self._HAVE] < newest:
            time.sleep(GLANCE)
        elif (found := self.store.wait(newest, timeout)) is not None:
            version, weights = found
            with self._exclusively():
                self._write(weights, version)


class WeightRelay:
    """Brings each version of the weights once to its machine, where readers find it in memory that they share."""

    def __init__(self, weights: Any) -> None:
        self._weights: RelayedWeights = weights

    def step(self) -> None:
        retry(lambda: self._weights.bring(COMING))


class WeightStore:
    """The newest weights and their version."""

    role = Role.WEIGHTS
    restart = True  # what is shared survives it, and the learner brings the rest (`loops/keeper.py`)

    if platform.machine() in ("x86_64", "AMD64"):
        shared_client = SharedWeights
        relayed_client = RelayedWeights
        relay = WeightRelay

    def __init__(self) -> None:
        self._board: SharedWeights | None = None  # what its callers share on its machine, where others call from afar
        self._changed = Condition()
        self._version = NONE
        self._weights: Columns = {}
        self._snapshots: dict[str, Any] = {}  # by node
        self._closed = False

    def share(self, fd: int) -> None:
        """Read and write the memory that callers on this machine share, so that callers elsewhere see the same."""
        self._board = SharedWeights(self, fd)

    def publish(self, weights: Arrays, version: int) -> None:
        if self._board is not None:
            self._board.publish(weights, version)
            self.announce(version)
            return
        kept = {name: np.array(value) for name, value in weights.items()}
        with self._changed:
            self._weights = kept
            self._version = version
            self._changed.notify_all()

    def compare_and_set(self, weights: Arrays, expected: int, version: int) -> bool:
        """Publish only if the newest version is still `expected`; whether it was."""
        if self._board is not None:
            if done := self._board.compare_and_set(weights, expected, version):
                self.announce(version)
            return done
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
        if self._board is not None and (found := self._board.newer(than)) is not None:
            return found
        with self._changed:
            return (self._version, self._weights) if self._version > than else None

    def wait(self, than: int = NONE, timeout: float | None = None) -> tuple[int, Columns] | None:
        """As `newer`, but waits for it, at most `timeout` seconds."""
        return self.newer(than) if self.reached(than, timeout) else None

    def reached(self, than: int, timeout: float | None = None) -> bool:
        """Wait until the version is newer than `than`."""
        if self._board is not None and self._board.has_newer(than):
            return True
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
