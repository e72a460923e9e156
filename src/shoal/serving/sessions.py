"""Sessions: what is remembered for a client from request to request, also while it is away, and for how long."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from time import monotonic
from typing import Any

from shoal.acting import Player
from shoal.gateway.messages import Refused
from shoal.gateway.wire import Message
from shoal.playing.policy import TrainedPolicy
from shoal.serving.batching import Lane

Deliver = Callable[[Message], None]


class Session:
    """One client's. A request that comes twice, as after a lost connection, gets the same answer and is not acted on
    again."""

    __slots__ = ("deliver", "environments", "held", "lane", "last", "name", "seq", "under_way")

    def __init__(self, name: str, lane: Lane, environments: int | None) -> None:
        self.name, self.lane, self.environments = name, lane, environments
        self.seq = 0  # of the newest request
        self.last: Message | None = None  # the newest answer
        self.under_way = 0  # requests that are not answered
        self.held: Any = None  # the connection that has it
        self.deliver: Deliver | None = None  # how that is told

    def answered(self, message: Message) -> None:
        self.under_way -= 1
        self.last = message
        if self.deliver is not None:
            self.deliver(message)


class Sessions:
    """Those there are: at most `most`; one that nobody holds ends `expiry` seconds after its last request."""

    def __init__(self, policy: TrainedPolicy, *, expiry: float, most: int) -> None:
        self._policy, self._expiry, self._most = policy, expiry, most
        self._open: dict[str, Session] = {}
        self._places = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, name: str = "", environments: int | None = None, rows: int | None = None) -> tuple[Session, bool]:
        """The session of this name, and whether it was there; a new one where there is none. `rows` is how many rows
        its memory has, where they are not known from `environments`."""
        found = self._open.get(name) if name else None
        if found is not None:
            if found.environments != environments:
                raise Refused(
                    "session", f"the session has {found.environments or 'no axis of'} environments: begin a new one"
                )
            return found, True
        if len(self._open) >= self._most:
            self.expire()
        if len(self._open) >= self._most:
            raise Refused("full", f"there are {self._most:,} sessions already: come back later")
        count = rows or environments or 1
        made = Session(name or secrets.token_hex(16), self.lane(count), environments)
        self._open[made.name] = made
        return made, False

    def lane(self, count: int) -> Lane:
        """With a memory where the policy has one."""
        place, self._places = self._places, self._places + count
        policy = self._policy
        return Lane(place, Player(policy.greedy, count, policy.stacks) if policy.remembers else None)

    def leave(self, session: Session, connection: Any) -> None:
        """Its connection is gone. Without memory there is nothing to come back for."""
        if session.held is not connection:
            return
        session.held = session.deliver = None
        if session.lane.player is None:
            self._open.pop(session.name, None)

    def end(self, name: str) -> None:
        self._open.pop(name, None)

    def expire(self) -> int:
        """Forget those that nobody has asked for in time; how many."""
        before = monotonic() - self._expiry
        old = [name for name, each in self._open.items() if each.held is None and each.lane.used < before]
        for name in old:
            del self._open[name]
        return len(old)
