"""Waiting and time, so that the same service blocks on a real clock or on the inline runtime's virtual one.

Services wait with `Condition` and read time with `monotonic`; they never sleep in a loop. On the inline runtime a
waiting node hands its turn to the next one and time is virtual, which makes a run reproducible and a deadlock visible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Scheduler(Protocol):
    """What the inline runtime provides while it drives nodes."""

    def monotonic(self) -> float: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None, why: str) -> bool: ...


class Activity:
    """What the thread that drives a node is doing, for another thread to see."""

    def __init__(self) -> None:
        self.driving = False
        self.steps = 0  # completed
        self.signs = 0  # of life in between
        self.waiting = 0  # for others, or for time to pass


class _Local(threading.local):
    activity: Activity | None = None
    scheduler: Scheduler | None = None  # a class attribute is found faster than a missing one
    when_beside: Callable[[bool], None] | None = None


_local = _Local()


def scheduler() -> Scheduler | None:
    """The inline scheduler that drives this thread, if one does."""
    return _local.scheduler


def set_scheduler(value: Scheduler | None) -> None:
    _local.scheduler = value


def set_activity(value: Activity | None) -> None:
    """Have what this thread does written down there."""
    _local.activity = value


def sign_of_life() -> None:
    """Something got done: a long step that goes on like this does not hang."""
    activity = _local.activity
    if activity is not None:
        activity.signs += 1


class waiting:
    """Within this context the thread waits for others: it does not hang, however long that takes."""

    def __enter__(self) -> None:
        self._activity = _local.activity
        if self._activity is not None:
            self._activity.waiting += 1

    def __exit__(self, *_: object) -> None:
        if self._activity is not None:
            self._activity.waiting -= 1
            self._activity.signs += 1


def monotonic() -> float:
    """Seconds on a clock that never goes back: virtual on the inline runtime."""
    current = scheduler()
    return current.monotonic() if current else time.monotonic()


def set_when_beside(call: Callable[[bool], None]) -> None:
    """What this thread does whenever a call that it serves says `work_beside_others`."""
    _local.when_beside = call


def work_beside_others(*, alone: bool) -> None:
    """Said by a served call that holds no lock from here on: it may have a core of its own. `alone`: nothing that it
    still does concerns anybody else, so that its caller's next call may begin too, in another thread. Whoever serves
    the call makes use of it (`set_when_beside`); elsewhere it does nothing."""
    if _local.when_beside is not None:
        _local.when_beside(alone)


class Condition:
    """A lock with waiting, as `threading.Condition`, that yields to the inline scheduler where there is one.

    `why` (given to `wait_for`) is what a deadlock report and a timeout say about the waiter.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())

    def __enter__(self) -> Condition:
        if _local.scheduler is None:
            self._condition.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if _local.scheduler is None:
            self._condition.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let others have the lock meanwhile. Call with the lock held once."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None, why: str = "a condition") -> bool:
        """Wait until `predicate()` holds; False when `timeout` seconds passed first. Call with the lock held."""
        current = scheduler()
        if current is None:
            with waiting():
                return self._condition.wait_for(predicate, timeout)
        return current.wait_for(predicate, timeout, why)

    def notify_all(self) -> None:
        if scheduler() is None:
            self._condition.notify_all()


_ends = threading.Event()


def end_process() -> None:
    """This process is about to end: nobody in it sleeps any more, or waits for a node that comes back."""
    _ends.set()


def process_ends() -> bool:
    return _ends.is_set()


def sleep(seconds: float) -> None:
    """Let `seconds` pass, or as many as the process has left."""
    current = scheduler()
    if current is None:
        with waiting():
            _ends.wait(seconds)
    else:
        current.wait_for(lambda: False, seconds, f"{seconds:.3g} s to pass")
