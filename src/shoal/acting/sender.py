"""Sending blocks of recorded rows to the replay service, with the first priorities of the items they complete."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.acting.policy import GivesPriorities, Policy
from shoal.program import Done, Future, NodeDied, current, futures
from shoal.replay import Block, Inserted, Pattern, Replay, ShardedReplay, ShardsLost, Writer
from shoal.retry import retry
from shoal.types import Columns

LOST = (NodeDied, ShardsLost)

_NOTHING = Done(Inserted({}, {}))


class PipelinedInserts:
    """A replay service as an actor sees it that goes on while its last block is being stored: the answer to an insert
    is the one before it. When the service was lost, so was the block before; the next one waits for its own answer."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._last: Future = _NOTHING
        self._under_way = (0, 0)  # rows and items of the block whose answer is still to come
        self.lost_rows = self.lost_items = 0
        self._alone = False
        self.forget_writer = replay.forget_writer

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        if self._alone:
            result: Inserted = self._replay.insert(block, timeout)
            self._alone = False
            return result
        before, self._last = self._last, _NOTHING  # where sending fails there is nothing to wait for
        lost, self._under_way = self._under_way, _size(block)
        self._last = futures(self._replay).insert(block, timeout)  # copied out while the one before is being stored
        try:
            result = before.result()
        except NodeDied:
            self.lost_rows, self.lost_items = self.lost_rows + lost[0], self.lost_items + lost[1]
            self._last, self._under_way, self._alone = _NOTHING, (0, 0), True
            raise
        return result


def _size(block: Block) -> tuple[int, int]:
    """Its rows, of all environments, and the items that they complete."""
    shape = next(iter(block.columns.values())).shape
    return int(shape[0] * shape[1]), sum(len(items.spans) for items in block.items.values())


class Sender:
    """Hands blocks of rows to a writer of its own.

    Of several replay services it writes to the one at `home`, and if that is lost to the next. While none answers it
    waits; a block that is sent twice by that is stored once.
    """

    def __init__(
        self, policy: Policy, replays: Sequence[Replay], patterns: Mapping[str, Pattern], name: str, home: int = 0
    ) -> None:
        self._replays = list(replays)
        self._pipelined = PipelinedInserts(replays[0]) if len(replays) == 1 else None
        receiver = self._pipelined or ShardedReplay(list(replays), home=home)
        priorities = policy.first_priorities if isinstance(policy, GivesPriorities) else None
        self._priorities = priorities.law if priorities else None
        self._writer = Writer(
            receiver,
            dict(patterns),
            name=name,
            life=f"{current().restarts}.{uuid.uuid4().hex}",  # a resumed run counts its restarts from 0 again
            priority_columns=priorities.columns if priorities else (),
            transient=priorities.transient if priorities else (),
        )

    def __call__(self, block: Columns) -> None:
        try:
            self._writer.append(block, self._priorities)
        except LOST:  # the writer has kept the block
            self.flush()

    def flush(self) -> None:
        """Go on with a block that was held up, or lost on its way."""
        retry(self._writer.flush, lost=LOST)

    def newest_is_lost(self) -> bool:
        """Whether what was sent last was lost with the service that it went to: nobody will ever learn from it."""
        writer = self._writer
        return not any(retry(lambda: [one.has_newest(writer.name, writer.life) for one in self._replays]))

    def take_lost(self) -> dict[str, int]:
        """What was lost with a service since the last time: rows that were on their way to it, and items that these
        had completed, or of which it had the first rows."""
        lost = {"lost_rows": 0, "lost_items": self._writer.cut_items}
        self._writer.cut_items = 0
        if (inserts := self._pipelined) is not None:
            lost = {"lost_rows": inserts.lost_rows, "lost_items": lost["lost_items"] + inserts.lost_items}
            inserts.lost_rows = inserts.lost_items = 0
        return {name: count for name, count in lost.items() if count}

    def state_dict(self) -> dict[str, Any]:
        return self._writer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._writer.load_state_dict(state)
