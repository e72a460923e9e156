"""What every loop can be asked by whoever watches and ends the run, from another thread: finish, report, doing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shoal.envs import Envs
from shoal.services.metrics import Reporter
from shoal.sync import Condition

TOLD_LOSSES = 5  # of a node's environments, word by word; all are counted


class Loop:
    """A node that is driven by its `step`. `_at_work` is held while a step changes what is reported or published.

    `still` is True where a step waits and could as well begin again, from the state that the loop has there: then a
    checkpoint can be taken. What is of use only to a run of which all nodes go on together is `EXACT` in its state.
    """

    still = False
    _reporter: Reporter

    def __init__(self) -> None:
        self._finishing = self._ended = False
        self._at_work = Condition()

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Around a wait from which a step could begin again."""
        self.still = True
        try:
            yield
        finally:
            self.still = False

    def finish(self) -> None:
        """End with the present step. One that waits for others may never get there: `report` speaks for it."""
        with self._at_work:
            self._finishing = True
            self._at_work.notify_all()

    def report(self) -> None:
        """Report what has been counted so far; returns when it has arrived."""
        self._reporter.flush_and_wait()

    def doing(self) -> tuple[str, int]:
        """The activity that it is in, and how many there have been: a number that stands still shows a hang."""
        activity, laps = self._reporter.doing()
        known = not self.still or activity.startswith("waiting")  # else it is guessed by what was before
        return activity if known else "waiting for others", laps

    def _end(self) -> bool:
        """The last thing a loop's `step` returns: who sees that it has finished finds everything reported."""
        self.report()
        self._ended = True
        return False


EXACT = "exact"  # the part of a state that is of use only where everything goes on together


def without_exact(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state for a node that goes on by itself, among others that begin anew or are elsewhere by now."""
    return {name: part for name, part in state.items() if name != EXACT}


class LossReport:
    """Tells of the environments that a node has lost and replaced: all in a count, the first ones in words."""

    def __init__(self, envs: Envs, report: Reporter, counted: str) -> None:
        self._envs, self._report, self._counted = envs, report, counted
        self._told = 0

    def tell(self) -> None:
        for loss in self._envs.losses():
            self._report.count(self._counted)
            if self._told < TOLD_LOSSES:
                self._told += 1
                self._report.note(loss)
