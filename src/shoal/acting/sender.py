"""Sending blocks of recorded rows to the replay service, with the first priorities of the items they complete."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from shoal.acting.policy import GivesPriorities, Policy
from shoal.program import Done, Future, current, futures
from shoal.replay import Block, Inserted, Pattern, Replay, ShardedReplay, Writer
from shoal.types import Columns

_NOTHING = Done(Inserted({}, {}))


class PipelinedInserts:
    """A replay service as an actor sees it that goes on while its last block is being stored: the answer to an insert
    is the one before it."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._last: Future = _NOTHING
        self.forget_writer = replay.forget_writer

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        before, self._last = self._last, _NOTHING  # where sending fails there is nothing to wait for
        self._last = futures(self._replay).insert(block, timeout)  # copied out while the one before is being stored
        result: Inserted = before.result()
        return result


class Sender:
    """Hands blocks of rows to a writer of its own.

    Of several replay services it writes to the one at `home`, and if that is lost to the next.
    """

    def __init__(
        self, policy: Policy, replays: Sequence[Replay], patterns: Mapping[str, Pattern], name: str, home: int = 0
    ) -> None:
        receiver = PipelinedInserts(replays[0]) if len(replays) == 1 else ShardedReplay(list(replays), home=home)
        prioritizing = policy if isinstance(policy, GivesPriorities) else None
        self._priorities = prioritizing.priorities if prioritizing else None
        self._writer = Writer(
            receiver,
            dict(patterns),
            name=name,
            life=f"{current().restarts}.{uuid.uuid4().hex}",  # a resumed run counts its restarts from 0 again
            priority_columns=prioritizing.priority_columns if prioritizing else (),
            transient=prioritizing.transient if prioritizing else (),
        )

    def __call__(self, block: Columns) -> None:
        self._writer.append(block, self._priorities)
