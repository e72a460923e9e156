"""What happens when a node is lost: pure decisions, the same on every runtime."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.program import Node

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0  # seconds
HEALTHY = 10.0  # a node that ran this long has recovered: its failures are no longer "in a row"


class RunFailed(RuntimeError):
    """The run cannot go on. `node` is the one that was lost; `traceback` is its own, when it raised."""

    def __init__(self, node: str, reason: str, traceback: str | None = None) -> None:
        super().__init__(reason)
        self.node, self.traceback = node, traceback


@dataclass(frozen=True)
class Loss:
    """One lost node, as it is shown and written to the run's record."""

    node: str
    reason: str
    traceback: str | None
    restarts: int


@dataclass
class Supervisor:
    """Decides whether a lost node is started again, and when."""

    max_failures: int = 5
    on_loss: Callable[[Loss], None] = lambda loss: None
    clock: Callable[[], float] = time.monotonic
    restarts: Counter[str] = field(default_factory=Counter)
    _in_a_row: Counter[str] = field(default_factory=Counter)
    _started: dict[str, float] = field(default_factory=dict)
    _shown: set[str] = field(default_factory=set)

    def started(self, name: str) -> None:
        self._started[name] = self.clock()

    def lost(self, node: Node, reason: str, traceback: str | None = None, secondary: bool = False) -> float:
        """Seconds to wait before the node is started again; raises `RunFailed` when the run must end.

        `secondary`: the node failed only because another one was lost, which will be judged by itself.
        """
        name = node.name
        if not node.restart:
            raise RunFailed(name, f"node {name!r} {reason}; the run cannot go on without it", traceback)
        if self.clock() - self._started.get(name, 0.0) >= HEALTHY:
            self._in_a_row[name] = 0
        self._in_a_row[name] += 1
        self.restarts[name] += 1
        if self._in_a_row[name] > self.max_failures and not secondary:
            count = self._in_a_row[name]
            raise RunFailed(name, f"node {name!r} {reason}, {count} times in a row; giving up", traceback)
        if not secondary:
            shown = None if traceback is None or _kind(traceback) in self._shown else traceback
            if shown:
                self._shown.add(_kind(shown))
            self.on_loss(Loss(name, reason, shown, self.restarts[name]))
        return float(min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** (self._in_a_row[name] - 1)))


def _kind(traceback: str) -> str:
    """Tracebacks that differ only in values count as the same: each is shown once."""
    return "".join(line for line in traceback.splitlines() if line.lstrip().startswith("File "))
