"""Streams of rows that outlive the clients who bring them: who leaves is followed by the next, in the same stream.

A row waits for what its action gives. When its client is lost it becomes the row before a reset, as after a truncated
end: no row is lost with a client, and writers do not heap up in the replay.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal import tree
from shoal.loops.sessions import Block, Request, Row, Session
from shoal.program import current
from shoal.services.inference import Slot
from shoal.step import Step
from shoal.types import Columns


class Kept(NamedTuple):
    """A full block that is to be sent, and whose last row it has, where its client is still there."""

    slot: Slot
    block: Columns
    session: Session | None
    stream: int
    seq: int


class Streams:
    """Slots by name, and which of them nobody writes to, in the thread that answers. Full blocks are kept until `ship`,
    which another thread may call: clients take their next step meanwhile."""

    def __init__(
        self,
        slots: dict[str, Slot],
        open_slot: Callable[[str, int, int, int, Callable[[Columns], object]], Slot],
        keeps: Callable[[Slot], None],  # is told of every block that is full
        shipped: Callable[[Slot], None],  # and of every one that was sent
    ) -> None:
        """`open_slot` makes one of a name, a life, its first environment, how many it has, and who gets its blocks."""
        self._slots, self._open, self._keeps, self._shipped = slots, open_slot, keeps, shipped
        self._free: list[str] = []
        self._full: Columns | None = None  # the block that the last result has completed
        self._kept: collections.deque[Kept] = collections.deque()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def count(self) -> int:
        return len(self._slots)

    def of(self, session: Session) -> list[Slot]:
        """The session's: those that others have left, and as many new ones as are missing. An environment that resets
        within a step has one row more than others now and then, so it has a stream of its own."""
        if not session.streams:
            alone = session.hello.autoreset == "same_step" and session.reader.count > 1
            count, many = (1, session.reader.count) if alone else (session.reader.count, 1)
            for _ in range(many):
                session.streams.append(self._get(count))
        return [self._slots[name] for name in session.streams]

    @staticmethod
    def parts(session: Session, observation: Any) -> list[Any]:
        """An observation for each of the session's streams."""
        if len(session.streams) == 1:
            return [observation]
        return [tree.map(lambda leaf, i=i: leaf[i : i + 1], observation) for i in range(len(session.streams))]

    def results(self, request: Request, slots: list[Slot]) -> list[tuple[int, Any]]:
        """Write down what the last actions gave; final observations that are rows of their own, by stream."""
        session, row = request.session, request.row
        assert isinstance(row, Row)
        if len(slots) == 1 and row.final is None:  # as nearly always
            step = Step(None, row.reward, row.terminated, row.truncated, row.reset)
            self._result(slots[0], step, request)
            return []
        finals: list[tuple[int, Any]] = []
        parts = self.parts(session, row.final) if row.final is not None else []
        for index, slot in enumerate(slots):
            at = slice(None) if len(slots) == 1 else slice(index, index + 1)
            step = Step(None, row.reward[at], row.terminated[at], row.truncated[at], row.reset[at])
            self._result(slot, step, request, index)
            if parts and bool(step.terminated[0] | step.truncated[0]):
                finals.append((index, parts[index]))
        return finals

    def block(self, request: Request, slot: Slot, block: Block) -> None:
        """Write down the rows of a client that acts by itself. What the last of them gave is told with the next block:
        until then, as of others, one row waits for it."""
        session, recorder = request.session, slot.recorder
        for time, row in enumerate(block.rows):
            if session.pending is not None:
                self._result(slot, session.pending, request)
            recorder.version = block.version
            recorder.player.extras = {name: column[time] for name, column in block.records.items()}
            recorder.record(tree.map(lambda leaf, time=time: leaf[time], block.observation), block.action[time])
            session.pending = Step(None, row.reward, row.terminated, row.truncated, row.reset)

    def cut(self, slot: Slot, request: Request | None = None, stream: int = 0) -> None:
        """What its last row gave is nothing, and what follows begins an episode."""
        count = slot.recorder.count
        ones, none = np.ones(count, np.bool_), np.zeros(count, np.bool_)
        self._result(slot, Step(None, np.zeros(count, np.float32), none, none, ones), request, stream)

    @property
    def waiting(self) -> int:
        """Blocks that are to be sent."""
        return len(self._kept)

    def ship(self) -> None:
        """Send the blocks that are full; waits where the replay does."""
        while self._kept:
            one = self._kept[0]
            one.slot.send(one.block)
            self._kept.popleft()
            self._shipped(one.slot)
            if one.session is not None:
                one.session.sent(one.stream, one.seq)

    def _result(self, slot: Slot, step: Step, request: Request | None, stream: int = 0) -> None:
        if slot.recorder.result(step):
            assert self._full is not None
            session, seq = (None, 0) if request is None else (request.session, request.seq - 1)
            self._kept.append(Kept(slot, self._full, session, stream, seq))
            self._keeps(slot)

    def _keep(self, block: Columns) -> None:
        """The recorder uses its arrays again."""
        self._full = {name: rows.copy() for name, rows in block.items()}

    def leave(self, session: Session) -> None:
        """The session's streams are for the next."""
        if session.begun:
            for name in session.streams:
                self.cut(self._slots[name])
        self._free += session.streams
        session.streams = []

    def _get(self, count: int) -> str:
        for name in self._free:
            if self._slots[name].recorder.count == count:
                self._free.remove(name)
                return name
        first = sum(slot.recorder.count for slot in self._slots.values())
        name = f"{current().name}/{len(self._slots)}"
        self._slots[name] = self._open(name, current().restarts, first, count, self._keep)
        for slot in self._slots.values():
            player = slot.recorder.player
            player.place(int(player.environments[0]), first + count)
        self._slots[name].recorder.player.place(first, first + count)
        return name
