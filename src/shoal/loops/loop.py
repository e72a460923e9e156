"""What every loop can be asked by whoever watches and ends the run, from another thread: finish, report, doing."""

from __future__ import annotations

from shoal.services.metrics import Reporter
from shoal.sync import Condition


class Loop:
    """A node that is driven by its `step`. `_at_work` is held while a step changes what is reported or published."""

    _reporter: Reporter

    def __init__(self) -> None:
        self._finishing = False
        self._at_work = Condition()

    def finish(self) -> None:
        """End with the present step. One that waits for others may never get there: `report` speaks for it."""
        with self._at_work:
            self._finishing = True
            self._at_work.notify_all()

    def report(self) -> None:
        """Report what has been counted so far; returns when it has arrived."""
        self._reporter.flush().result()

    def doing(self) -> tuple[str, int]:
        """The activity that it is in, and how many there have been: a number that stands still shows a hang."""
        return self._reporter.doing()

    def _end(self) -> bool:
        """The last thing a loop's `step` returns: who sees that it has finished finds everything reported."""
        self.report()
        return False
