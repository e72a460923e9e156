"""What happens when a node is lost or hangs: pure decisions, the same on every runtime."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.program import Node

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0  # seconds
HEALTHY = 10.0  # seconds after which the next loss is not a quick one: the backoff begins anew
HANG_SECONDS = 30.0
ERRORS = 4  # times max_failures: errors of one node after short lives, whatever it has completed in between


class RunFailed(RuntimeError):
    """The run cannot go on. `node` is the one that was lost; `traceback` is its own, when it raised; `user_error` is
    the sentence of a `UserError` that it raised."""

    def __init__(self, node: str, reason: str, traceback: str | None = None, user_error: str | None = None) -> None:
        super().__init__(reason)
        self.node, self.traceback, self.user_error = node, traceback, user_error


@dataclass(frozen=True)
class Loss:
    """One lost node, as it is shown and written to the run's record."""

    node: str
    reason: str
    traceback: str | None
    restarts: int


@dataclass(frozen=True)
class Hang:
    """A node that lives and does nothing, as it is shown and written to the run's record."""

    node: str
    seconds: float
    reason: str
    replaced: bool


@dataclass
class Supervisor:
    """Decides whether a lost node is started again, and when.

    A run gives up when one node is lost more than `max_failures` times without having got anywhere in between: it has
    completed no step, or, where it has none to complete, nobody has learned anything meanwhile and it has not lived for
    `HEALTHY` seconds. It gives up, too, when a node has raised more than `ERRORS` times as often, each time within
    `HEALTHY` seconds of its start: what it brings in between is of beginnings only.
    """

    max_failures: int = 5
    on_loss: Callable[[Loss], None] = lambda loss: None
    on_hang: Callable[[Hang], None] = lambda hang: None
    on_print: Callable[[str, str, str], None] = lambda node, machine, text: None  # what a node has printed, and where
    on_note: Callable[[str], None] = lambda text: None  # what a user should know, in a sentence
    hang_seconds: float | None = HANG_SECONDS  # without a sign of life; None or 0: nobody looks
    interrupted: Callable[[], bool] = lambda: False  # asked between two nodes that are started: no further one is
    states: dict[str, Callable[[], Any]] = field(default_factory=dict)  # what a node takes when it is started again
    clock: Callable[[], float] = time.monotonic
    restarts: Counter[str] = field(default_factory=Counter)  # after losses
    lives: Counter[str] = field(default_factory=Counter)  # that have ended, by loss or because the node left
    _in_a_row: Counter[str] = field(default_factory=Counter)  # losses without progress
    _quick: Counter[str] = field(default_factory=Counter)  # losses after short lives
    _errors: Counter[str] = field(default_factory=Counter)  # those among them that were its own
    _started: dict[str, float] = field(default_factory=dict)
    _shown: set[str] = field(default_factory=set)

    def started(self, name: str) -> None:
        self._started[name] = self.clock()

    def lost(
        self,
        node: Node,
        reason: str,
        traceback: str | None = None,
        secondary: bool = False,
        *,
        user_error: str | None = None,
        progress: int | None = None,
        raised: bool = False,
    ) -> float:
        """Seconds to wait before the node is started again; raises `RunFailed` when the run must end.

        `secondary`: the node failed only because another one was lost, which is judged by itself. `user_error`: what
        the user got wrong, which a restart does not mend. `progress`: the steps that it has completed in this life,
        or others have made with its help; None where there are none to complete. `raised`: by an error of its own.
        """
        name = node.name
        if user_error is not None:
            raise RunFailed(name, user_error, traceback, user_error)
        if not node.restart:
            raise RunFailed(name, f"node {name!r} {reason}; the run cannot go on without it", traceback)
        lived_long = self.clock() - self._started.get(name, 0.0) >= HEALTHY
        if lived_long:
            self._quick[name] = self._errors[name] = 0
        if lived_long if progress is None else progress > 0:
            self._in_a_row[name] = 0
        self._quick[name] += 1
        self.restarts[name] += 1
        self.lives[name] += 1
        if not secondary:
            self._in_a_row[name] += 1
            self._errors[name] += raised
            count, errors = self._in_a_row[name], self._errors[name]
            if count > self.max_failures:
                raise RunFailed(name, f"node {name!r} {reason}, {count} times in a row; giving up", traceback)
            if errors > ERRORS * max(1, self.max_failures):
                often = f"{errors} times, each within {HEALTHY:.0f} s of its start"
                raise RunFailed(name, f"node {name!r} {reason}, {often}; giving up", traceback)
            shown = None if traceback is None or _kind(traceback) in self._shown else traceback
            if shown:
                self._shown.add(_kind(shown))
            self.on_loss(Loss(name, reason, shown, self.restarts[name]))
        return float(min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** (self._quick[name] - 1)))


def _kind(traceback: str) -> str:
    """Tracebacks that differ only in values count as the same: each is shown once."""
    return "".join(line for line in traceback.splitlines() if line.lstrip().startswith("File "))
