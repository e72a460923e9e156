"""How many threads a learner computes with, where nobody has said: one, and more while other cores are idle.

Threads that wait for a core which somebody else has make an update many times slower: a learner of `sac` with two
threads beside two busy processes took 37 to 64 ms an update where one thread took 7 (docs/decisions/0043). So a thread
is added only where a core was idle, stays only if updates have become faster by it, and goes when they are slower than
before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

PERIOD = 2.0  # seconds over which idle cores and the time of an update are averaged
IDLE = 0.5  # of a core that must have been idle before a thread is added
GAIN = 0.95  # of the time of an update: what it must at most take with a thread more
REST = 30.0  # seconds until it is tried again after it was of no use, and twice as long after every further time
LONGEST_REST = 600.0


class IdleCores:
    """Follows the cores that others leave idle. `took` is told how long each update has taken."""

    def __init__(
        self,
        most: int | None = None,  # threads; None: one for each core that this process may use
        *,
        set_threads: Callable[[int], None] = torch.set_num_threads,
        clock: Callable[[], float] = time.monotonic,
        idle: Callable[[], float | None] | None = None,  # seconds that all cores have been idle so far; None: unknown
    ) -> None:
        self.threads = 1
        self._most = len(os.sched_getaffinity(0)) if most is None else most
        self._set_threads, self._clock, self._idle = set_threads, clock, idle or idle_seconds
        self._before: list[float] = []  # the time of an update with fewer threads, for each that was added
        self._rest, self._until = REST, 0.0
        self._begin()

    def _begin(self) -> None:
        self._since, self._was_idle = self._clock(), self._idle()
        self._updates, self._seconds = 0, 0.0

    def took(self, seconds: float) -> None:
        """An update has taken so long, waiting not counted."""
        self._updates += 1
        self._seconds += seconds
        passed = self._clock() - self._since
        if passed >= PERIOD:
            self._judge(self._seconds / self._updates, passed)
            self._begin()

    def _judge(self, update: float, passed: float) -> None:
        if self._before and update > GAIN * self._before[-1]:
            self._before.pop()
            self._until, self._rest = self._clock() + self._rest, min(2.0 * self._rest, LONGEST_REST)
            self._change(self.threads - 1)
            return
        idle = self._idle()
        if self.threads >= self._most or idle is None or self._was_idle is None or self._clock() < self._until:
            return
        if idle - self._was_idle >= IDLE * passed:
            self._before.append(update)
            self._change(self.threads + 1)

    def _change(self, threads: int) -> None:
        self.threads = threads
        self._set_threads(threads)


def idle_seconds() -> float | None:
    """That the cores of this machine have been idle since it was started, summed; None where Linux does not tell."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")  # idle, and waiting for a disk
    except (OSError, ValueError, IndexError):
        return None
