"""Requests of many clients, answered together: what has come while the last batch was computed is the next one.

Nothing here knows of sockets. All of it runs on one event loop; what computes (`Computes`) may be elsewhere.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal import tree
from shoal.acting import Player
from shoal.types import Array, Columns

log = logging.getLogger("shoal.serving")
GATHER = 0.25  # of a batch's time that is waited for those who were just answered, to ask again
WORTH = 0.001  # seconds that a batch takes before that is worth anything
TRIES = 3  # computers that may die over one batch before its requests are refused


class Refused(Exception):
    """A request is not answered with an action; the sentence is for who asked. `busy`: another time it might be."""

    def __init__(self, sentence: str, *, busy: bool = False) -> None:
        super().__init__(sentence)
        self.busy = busy


class Lost(Exception):
    """What computed a batch is gone, and the batch is as it was."""


class Answer(NamedTuple):
    action: Array  # [rows, ...] as the environment takes it
    version: int  # of the policy that chose it
    waited: float  # seconds until it was computed
    computed: float  # seconds that its batch took


class Lane:
    """One client's requests, answered in their order; with what is remembered for it where the policy remembers."""

    __slots__ = ("flight", "place", "player", "used")

    def __init__(self, place: int = 0, player: Player | None = None) -> None:
        self.player = player
        self.place = place  # among all lanes: an exploring policy explores differently from place to place
        self.flight: Work | None = None  # the batch in which its requests are computed now
        self.used = monotonic()


@dataclass(slots=True, eq=False)
class Ask:
    """A request: observations [rows, ...], and who is told."""

    lane: Lane
    rows: int
    observation: Any
    done: Callable[[Answer | Refused], None]
    begins: Array | None = None  # bool [rows]: where an episode begins; None: as the lane has it
    reward: Array | None = None  # float32 [rows]: what the last actions gave
    explore: bool = False
    arrived: float = field(default_factory=monotonic)
    seen: Any = None  # as the policy sees it, with its memory before it: looked up once
    before: Columns = field(default_factory=dict)
    first: Array | None = None


@dataclass(slots=True, eq=False)
class Work:
    """A batch."""

    asks: list[Ask]
    observation: Any  # [rows, ...]
    state: Columns
    first: Array
    environments: Array
    explore: bool
    started: float
    tries: int = 0


class Computed(NamedTuple):
    action: Array  # [rows, ...] as the environment takes it
    state: Columns
    version: int


Done = Callable[[Work, Computed | Exception], None]


class Computes(Protocol):
    """What computes batches. `free` says whether it takes one now; `start` tells `done` once, now or later, and the
    batcher's `wake` is called where it becomes free again."""

    @property
    def free(self) -> bool: ...
    def start(self, work: Work, done: Done) -> None: ...


class Batcher:
    """Gathers requests and has them computed, `max_batch` rows at once; the first of a batch waits at most `max_wait`
    seconds for others. At most `max_pending` requests wait; `patience` is how long one does."""

    def __init__(
        self,
        computes: Computes,
        *,
        max_batch: int = 64,
        max_wait: float = 0.0,
        max_pending: int = 4096,
        patience: float = 30.0,
        watch: Callable[[int, float], None] | None = None,  # is told the rows and the seconds of every batch
    ) -> None:
        self._computes = computes
        self._max_batch, self._max_wait, self._max_pending, self._patience = max_batch, max_wait, max_pending, patience
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._pending: collections.deque[Ask] = collections.deque()
        self._flights: set[Work] = set()
        self._woken = False
        self._last = (0, 0.0, 0.0)  # of the last batch: requests, the seconds it took, when it was answered
        self._timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []

    @property
    def open(self) -> int:
        """Requests that are not answered yet."""
        return len(self._pending) + sum(len(work.asks) for work in self._flights)

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def ask(self, ask: Ask, *, alone: bool = False) -> None:
        """Answered through `ask.done`, on this loop; `alone`: nobody else can ask, so that it may be answered before
        this returns. `Refused` where too many wait already."""
        if len(self._pending) >= self._max_pending:
            raise Refused(
                f"The server is busy: {len(self._pending):,} requests wait already; ask again later.", busy=True
            )
        ask.lane.used = ask.arrived
        self._pending.append(ask)
        if alone and len(self._pending) == 1:
            self._turn()
        elif not self._woken:
            self.wake()

    def wake(self) -> None:
        """Look at what waits in the loop's next turn: by then everything that has arrived in this one is here."""
        self._woken = True
        self._loop.call_soon(self._turn)

    async def idle(self) -> None:
        """Until every request is answered."""
        while self.open:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    # ---- one batch

    def _turn(self) -> None:
        self._woken = False
        if not self._pending:
            return
        if not self._computes.free:
            self._look_again(self._pending[0].arrived + self._patience)
            self._refuse_the_late()
            return
        if self._max_wait > 0 and len(self._pending) < self._max_batch:
            due = self._pending[0].arrived + self._max_wait
            if monotonic() < due and sum(ask.rows for ask in self._pending) < self._max_batch:
                self._look_again(due)
                return
        count, seconds, answered = self._last
        if seconds >= WORTH and len(self._pending) < min(count, self._max_batch):
            due = answered + GATHER * seconds  # or a few would be computed now, and the others wait for that
            if monotonic() < due:
                self._look_again(due)
                return
        asks = self._take()
        if asks:
            self._start(self._work(asks))
            if self._pending and not self._woken:
                self.wake()

    def _take(self) -> list[Ask]:
        """The next batch: in the order of arrival, but for lanes that are being computed for. A lane that remembers has
        one request in a batch."""
        taken: list[Ask] = []
        left: list[Ask] = []
        passed: set[int] = set()  # lanes of which nothing more is taken
        rows = 0
        pending = self._pending
        while pending:
            ask = pending[0]
            if taken and rows + ask.rows > self._max_batch:
                break
            pending.popleft()
            lane = ask.lane
            if lane.flight is not None or id(lane) in passed or (taken and ask.explore != taken[0].explore):
                passed.add(id(lane))
                left.append(ask)
                continue
            if lane.player is not None:
                passed.add(id(lane))
            taken.append(ask)
            rows += ask.rows
        pending.extendleft(reversed(left))
        return taken

    def _work(self, asks: list[Ask]) -> Work:
        for ask in asks:
            if ask.first is None:
                _look(ask)
        if len(asks) == 1:
            only = asks[0]
            assert only.first is not None
            return Work(asks, only.seen, only.before, only.first, _environments(asks), asks[0].explore, monotonic())
        observation = tree.map(lambda *parts: np.concatenate(parts), *(ask.seen for ask in asks))
        names = asks[0].before
        state = {name: np.concatenate([ask.before[name] for ask in asks]) for name in names}
        first = np.concatenate([ask.first for ask in asks if ask.first is not None])
        return Work(asks, observation, state, first, _environments(asks), asks[0].explore, monotonic())

    def _start(self, work: Work) -> None:
        for ask in work.asks:
            ask.lane.flight = work
        self._flights.add(work)
        self._computes.start(work, self._done)

    def _done(self, work: Work, result: Computed | Exception) -> None:
        if work not in self._flights:
            return  # another one was faster
        self._flights.discard(work)
        for ask in work.asks:
            ask.lane.flight = None
        if isinstance(result, Lost) and work.tries + 1 < TRIES:
            work.tries += 1
            self._again([work])
        elif isinstance(result, Exception) and len(work.asks) > 1:
            self._again([self._work([ask]) for ask in work.asks])  # others do not fail with one
        else:
            self._answer(work, result)
        if self._pending and not self._woken:
            self.wake()
        if self._idle and not self.open:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    def _again(self, works: Sequence[Work]) -> None:
        """What was begun goes before what waits."""
        for work in works:
            self._flights.add(work)
            for ask in work.asks:
                ask.lane.flight = work
        self._loop.call_soon(self._repeat, list(works))

    def _repeat(self, works: list[Work]) -> None:
        works = [work for work in works if work in self._flights]  # one may have been answered after all
        while works:
            if not self._computes.free:
                now = monotonic()
                for work in [each for each in works if now - each.asks[0].arrived > self._patience]:
                    works.remove(work)
                    self._done(work, self._late())
                if works:
                    self._loop.call_later(0.01, self._repeat, works)
                return
            self._computes.start(works.pop(0), self._done)

    def _answer(self, work: Work, result: Computed | Exception) -> None:
        now = monotonic()
        self._last = len(work.asks), now - work.started, now
        if self._watch is not None:
            self._watch(len(work.first), now - work.started)
        end = 0
        for ask in work.asks:
            begin, end = end, end + ask.rows
            if isinstance(result, Exception):
                _tell(ask, _refusal(result))
                continue
            action = result.action[begin:end]
            if action.dtype.kind == "f" and not np.isfinite(action).all():
                _tell(ask, Refused("The policy's action is not finite: nothing is done with it."))
                continue
            if ask.lane.player is not None:
                ask.lane.player.acted({name: value[begin:end] for name, value in result.state.items()}, {})
                ask.lane.player.first = np.zeros(ask.rows, np.bool_)
            _tell(ask, Answer(action, result.version, work.started - ask.arrived, now - work.started))

    # ---- time

    def _look_again(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, when - monotonic()), self._turn)

    def _refuse_the_late(self) -> None:
        now = monotonic()
        while self._pending and now - self._pending[0].arrived > self._patience:
            _tell(self._pending.popleft(), self._late())

    def _late(self) -> Refused:
        return Refused(f"Nothing has computed the action within {self._patience:g} s: ask again later.", busy=True)


def _look(ask: Ask) -> None:
    """What the policy sees of it, and carries into it."""
    player = ask.lane.player
    if player is None:
        ask.seen, ask.first = ask.observation, np.ones(ask.rows, np.bool_)
        return
    if ask.begins is not None:
        player.first = player.first | ask.begins
    if ask.reward is not None:
        player.told(ask.reward)
    seen, ask.before = player.look(ask.observation)
    ask.seen = seen if seen is ask.observation else tree.map(np.array, seen)  # a stack is the stacker's own
    ask.first = np.asarray(player.first)


def _environments(asks: Sequence[Ask]) -> Array:
    return np.concatenate([np.arange(ask.lane.place, ask.lane.place + ask.rows) for ask in asks])


def _tell(ask: Ask, answer: Answer | Refused) -> None:
    """Who cannot be told keeps nobody else from being told."""
    try:
        ask.done(answer)
    except Exception:
        log.exception("an answer could not be told")


def _refusal(error: Exception) -> Refused:
    """Without what only the server's owner should read."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Lost):
        return Refused("What computed the action was lost, again and again.", busy=True)
    return Refused(f"The policy failed ({type(error).__name__}).")
