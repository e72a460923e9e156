"""The inline runtime's scheduler: threads that pass a baton, on a virtual clock."""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shoal import sync
from shoal.program import NodeDied

TICK = 1e-3  # virtual seconds a step takes


class Deadlock(RuntimeError):
    """No node can make progress."""


class Stopped(BaseException):
    """Unwinds a node's thread when the run ends."""


@dataclass(eq=False)
class Task:
    """A thread that takes part in passing the baton."""

    name: str
    place: tuple[int, ...] = (-1,)  # in the order of turns: that of the program, whenever a thread was started
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    predicate: Callable[[], bool] | None = None
    deadline: float | None = None
    why: str = ""
    ended: bool = False
    idle: bool = False  # a lane with nothing to do is not waiting for anybody
    thread: threading.Thread | None = None
    inside: list[str] = field(default_factory=list)  # the nodes whose methods it is running, outermost first
    lost: str | None = None  # one of these that is gone
    ending: bool = False  # it is to be unwound at its next turn

    def runnable(self, now: float) -> bool:
        if self.ended:
            return False
        if self.predicate is None or self.ending or self.lost is not None or self.predicate():
            return True
        return self.deadline is not None and self.deadline <= now


class Baton:
    """The scheduler: implements `sync.Scheduler` for the threads of one run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.main = Task("main")
        self.tasks: list[Task] = [self.main]
        self.turns = 0
        self.stopping = False
        self.deadlock: str | None = None  # what the driver is told when its own call can never be answered
        self._holder = self.main

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float) -> float:
        """The time so many seconds from now; to nanoseconds, or it would depend on when somebody begins to wait.
        However little is asked for, some time passes: what is due in less than a nanosecond would never be."""
        later = round(self.now + seconds, 9)
        return later if later > self.now or seconds <= 0.0 else round(self.now + 1e-9, 9)

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Within this context the current thread takes part; nodes' threads do anyway, the driver's only here."""
        before = sync.scheduler()
        sync.set_scheduler(self)
        try:
            yield
        finally:
            sync.set_scheduler(before)

    def spawn(self, name: str, place: tuple[int, ...], body: Callable[[], None], idle: bool = False) -> Task:
        task = Task(name, place, idle=idle)

        def run() -> None:
            task.turn.acquire()
            sync.set_scheduler(self)
            try:
                if not self.stopping and not task.ending:
                    body()
            except Stopped:
                pass
            finally:
                task.ended = True
                if not self.stopping:
                    self._pass_on(task)

        task.thread = threading.Thread(target=run, name=name, daemon=True)
        task.thread.start()
        bisect.insort_right(self.tasks, task, key=lambda one: one.place)
        return task

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None, why: str) -> bool:
        if predicate():
            return True
        if timeout is not None and timeout <= 0:
            return False  # as for who has waited until now, and has its turn
        self._wait(predicate, None if timeout is None else self.after(timeout), why)
        return predicate()

    def yield_turn(self) -> None:
        self.turns += 1
        self.now = self.after(TICK)
        self._wait(None, None, "")

    def _wait(self, predicate: Callable[[], bool] | None, deadline: float | None, why: str) -> None:
        task = self._holder
        task.predicate, task.deadline, task.why = predicate, deadline, why
        self._pass_on(task)
        task.turn.acquire()
        task.predicate = task.deadline = None
        if task.ending or (self.stopping and task is not self.main):
            raise Stopped
        if task.lost is not None:
            name, task.lost = task.lost, None
            raise NodeDied(f"node {name!r} died before it answered")
        if self.deadlock is not None:
            report, self.deadlock = self.deadlock, None
            raise Deadlock(report)

    def _pass_on(self, task: Task) -> None:
        following = self._next(task)
        self._holder = following
        following.turn.release()

    def _next(self, after: Task) -> Task:
        at = self.tasks.index(after) + 1
        order = self.tasks[at:] + self.tasks[:at]
        while True:
            for task in order:
                if task.runnable(self.now):
                    return task
            # nobody: let time pass
            deadlines = [task.deadline for task in order if task.deadline is not None and not task.ended]
            if not deadlines:  # the driver itself waits for an answer, or it would have a deadline
                self.deadlock = deadlock_report([*self.stuck(), self.main])
                return self.main
            self.now = min(deadlines)

    def stuck(self) -> list[Task]:
        """The waiting tasks, when none of them will ever go on by itself."""
        waiting = [task for task in self.tasks if not task.ended and not task.idle and task is not self.main]
        if any(task.predicate is None or task.deadline is not None or task.predicate() for task in waiting):
            return []
        return waiting

    def lose(self, name: str) -> None:
        """A node is gone: whoever waits in one of its methods gets `NodeDied`."""
        for task in self.tasks:
            if name in task.inside:
                task.lost = name

    def end(self, name: str) -> None:
        """Unwind the threads of this name, in the driver's turn; of the others nobody knows them any more."""
        ending = [task for task in self.tasks if task.name == name and task is not self.main]
        for task in ending:
            task.ending = True
        with self.driving():
            self.wait_for(lambda: all(task.ended for task in ending), None, f"the end of {name!r}")
        self.tasks = [task for task in self.tasks if task not in ending]

    @property
    def holder(self) -> Task:
        return self._holder

    def stop(self) -> None:
        """Unwind every thread, one after the other."""
        self.stopping = True
        for task in self.tasks:
            if task.thread is not None:
                self._holder = task
                task.turn.release()
                task.thread.join(5.0)
        self._holder = self.main


def deadlock_report(stuck: list[Task]) -> str:
    return "no node can make progress: " + "; ".join(f"{task.name} waits for {task.why}" for task in stuck)
