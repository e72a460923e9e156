"""A discrete-event simulation: processes that compute on machines, send over links and wait for each other.

A process is a generator. What it yields is a `Wait`: something that is given a function to call when the process may go
on, with what it then gets. Nothing here knows of reinforcement learning.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
from collections.abc import Callable, Generator
from typing import Any

Resume = Callable[[Any], None]
Wait = Callable[[Resume], None]
Process = Generator[Wait, Any, None]


class Simulation:
    """Events in the order of their times; those of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0  # that have happened
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), call))

    def start(self, process: Process, delay: float = 0.0) -> None:
        self.after(delay, lambda: self._go_on(process, None))

    def delay(self, seconds: float) -> Wait:
        return lambda resume: self.after(seconds, lambda: resume(None))

    def together(self, *waits: Wait) -> Wait:
        """Goes on when all of them have."""

        def begin(resume: Resume) -> None:
            left = len(waits)

            def ended(_: Any) -> None:
                nonlocal left
                left -= 1
                if not left:
                    resume(None)

            for wait in waits:
                wait(ended)

        return begin

    def run(self, until: float, most_events: int | None = None) -> bool:
        """False when there was nothing more to do, or when so many events were not enough."""
        last = None if most_events is None else self.events + most_events
        while self._heap and self._heap[0][0] <= until:
            if last is not None and self.events >= last:
                return False
            self.now, _, call = heapq.heappop(self._heap)
            self.events += 1
            call()
        if not self._heap:
            return False
        self.now = until
        return True

    def _go_on(self, process: Process, value: Any) -> None:
        try:
            wait = process.send(value)
        except StopIteration:
            return
        wait(lambda answer: self._go_on(process, answer))


class Machine:
    """Cores that all who compute share evenly, each on one of them at the most (processor sharing).

    Cores that are busy at the same time slow each other down: when all of them are, each has the speed `together` of
    one that is busy alone. Everybody who computes advances at the same rate, so that one clock of work done per process
    says when each ends.
    """

    def __init__(self, simulation: Simulation, cores: float, together: float = 1.0) -> None:
        self._simulation, self.cores, self._together = simulation, cores, together
        self._work = 0.0  # done by each who has been computing all the time
        self._since = 0.0
        self._computing: list[tuple[float, int, Resume]] = []  # by how far that clock is when each ends
        self._order = itertools.count()
        self._planned = 0  # the newest event that ends somebody; older ones are void
        self.busy = 0.0  # seconds of cores

    def work(self, seconds: float) -> Wait:
        def begin(resume: Resume) -> None:
            if seconds <= 0.0:
                self._simulation.after(0.0, lambda: resume(None))
                return
            self._advance()
            heapq.heappush(self._computing, (self._work + seconds, next(self._order), resume))
            self._plan()

        return begin

    def used(self) -> float:
        """Seconds of cores up to now."""
        self._advance()
        return self.busy

    def _rate(self) -> float:
        count = len(self._computing)
        if count < 2 or self.cores <= 1:
            return min(1.0, self.cores) * (self._together if count > 1 else 1.0) / max(1, count)
        others = (min(count, self.cores) - 1) / (self.cores - 1)  # the share of the other cores that is busy
        return min(1.0, self.cores / count) * (1.0 - (1.0 - self._together) * others)

    def _advance(self) -> None:
        passed, self._since = self._simulation.now - self._since, self._simulation.now
        self._work += passed * self._rate()
        self.busy += passed * min(self.cores, len(self._computing))

    def _plan(self) -> None:
        self._planned += 1
        if self._computing:
            number, left = self._planned, max(0.0, self._computing[0][0] - self._work)
            self._simulation.after(left / self._rate(), lambda: self._end(number))

    def _end(self, number: int) -> None:
        if number != self._planned:
            return
        self._advance()
        ends, _, resume = heapq.heappop(self._computing)
        self._work = max(self._work, ends)  # but for what rounding has left
        self._plan()
        resume(None)


class Link:
    """Messages one after the other, in the order in which they come."""

    def __init__(self, simulation: Simulation, rate: float) -> None:
        self._simulation, self.rate = simulation, rate  # bytes per second
        self._free = 0.0
        self.sent = 0.0  # bytes

    def send(self, size: float) -> Wait:
        def begin(resume: Resume) -> None:
            self._free = max(self._free, self._simulation.now) + size / self.rate
            self.sent += size
            self._simulation.after(self._free - self._simulation.now, lambda: resume(None))

        return begin

    def used(self) -> float:
        """Seconds up to now in which it was sending; what still waits is not counted."""
        return self.sent / self.rate - max(0.0, self._free - self._simulation.now)


class Server:
    """Does one thing at a time, in the order in which it is asked: on a machine's cores, or beside them on a device."""

    def __init__(self, simulation: Simulation, machine: Machine) -> None:
        self._simulation, self.machine = simulation, machine
        self._asked: collections.deque[tuple[float, float, Resume]] = collections.deque()
        self._working = False
        self._busy, self._begun = 0.0, 0.0

    def call(self, seconds: float, beside: float = 0.0) -> Wait:
        """So many seconds of a core, and so many on what is no core."""

        def begin(resume: Resume) -> None:
            self._asked.append((seconds, beside, resume))
            if not self._working:
                self._simulation.start(self._serve())
                self._working, self._begun = True, self._simulation.now

        return begin

    def used(self) -> float:
        """Seconds up to now in which it had something to do."""
        return self._busy + (self._simulation.now - self._begun if self._working else 0.0)

    def _serve(self) -> Process:
        while self._asked:
            seconds, beside, resume = self._asked.popleft()
            if seconds:
                yield self.machine.work(seconds)
            if beside:
                yield self._simulation.delay(beside)
            resume(None)
        self._working = False
        self._busy += self._simulation.now - self._begun


class Signal:
    """Wakes all who wait for it."""

    def __init__(self) -> None:
        self._waiting: list[Resume] = []

    def wait(self) -> Wait:
        return self._waiting.append

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume(None)


class Table:
    """What is between acting and learning, as far as its limiter goes: items that came, items that were taken.

    `room` says how many may come, `ready` how many may be taken; both wait in the order in which they came.
    """

    def __init__(self, room: Callable[[Table], float], ready: Callable[[Table], float]) -> None:
        self._room, self._ready = room, ready
        self.came = self.taken = 0.0
        self._writers: collections.deque[tuple[float, Resume]] = collections.deque()
        self._readers: collections.deque[tuple[float, Resume]] = collections.deque()

    def put(self, items: float) -> Wait:
        def begin(resume: Resume) -> None:
            self._writers.append((items, resume))
            self._look()

        return begin

    def take(self, items: float) -> Wait:
        def begin(resume: Resume) -> None:
            self._readers.append((items, resume))
            self._look()

        return begin

    def _look(self) -> None:
        """Let in and give out what may be; a block comes in as far as there is room for it."""
        moved = True
        while moved:
            moved = False
            while self._writers and (room := self._room(self)) > 0:
                items, resume = self._writers.popleft()
                self.came += min(items, room)
                moved = True
                if items > room:
                    self._writers.appendleft((items - room, resume))
                else:
                    resume(None)
            while self._readers and self._readers[0][0] <= self._ready(self) + 1e-9:
                items, resume = self._readers.popleft()
                self.taken += items
                moved = True
                resume(None)


def queue(capacity: float) -> Table:
    """Every item is taken once; who brings one waits while there are `capacity`."""
    return Table(lambda table: capacity - (table.came - table.taken), lambda table: table.came - table.taken)


def replay(ratio: float, least: float, error: float) -> Table:
    """Items are taken `ratio` times on average, within `error`, once there are `least`; 0: as often as is asked."""
    if not ratio:
        return Table(lambda table: math.inf, lambda table: math.inf if table.came >= least else 0.0)

    def ahead(table: Table) -> float:
        return (table.came - least) * ratio - table.taken

    return Table(
        lambda table: max((error - ahead(table)) / ratio, least - table.came),
        lambda table: ahead(table) + error if table.came >= least else 0.0,
    )
