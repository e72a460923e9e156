"""What every loop can be asked by whoever watches and ends the run, from another thread: finish, report, doing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shoal.envs import Envs
from shoal.program import Members, current
from shoal.services.metrics import Reporter
from shoal.state import Scope, State
from shoal.sync import Condition

BETWEEN_ROWS = 2.0  # seconds in which an actor comes to the end of a row, unless others hold it up
TOLD_LOSSES = 5  # of a node's environments, word by word; all are counted
HELD_UP = 0.1  # the same at the end of a run, when who has not ended by then waits for others that have


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
        return self._reporter.doing()

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


class RowLoop(Loop):
    """A loop that steps environments: it can be asked for its state, which it has between two rows."""

    in_checkpoints = True

    def __init__(self) -> None:
        super().__init__()
        self._leaving, self._open = False, 0  # open episodes that were counted as lost
        self._members = current().members
        self._asked = False
        self._given: State | None = None

    def regroup(self, members: Members) -> None:
        """Others act beside this node now; it takes its new place with its next step."""
        self._members = members

    def leave(self) -> None:
        """End after the present step, whose rows are not lost; open episodes are, and counted."""
        self._leaving = True

    def report(self) -> None:
        """As of any loop; one that leaves, or did not get to the end of its step, counts what is lost with it."""
        if self._leaving:
            before, self._open = self._open, self._open_episodes()
            self._reporter.count("lost_episodes", self._open - before)
        super().report()

    def state_dict(self, scope: Scope = "own") -> State | None:
        """Its state between two rows; None when others hold it up for too long. All nodes together are asked while they
        stand still."""
        if self._ended or scope == "exact":
            return self._row_state(scope)
        with self._at_work:
            patience = HELD_UP if self._finishing else BETWEEN_ROWS
            self._asked, self._given = True, None
            self._at_work.wait_for(lambda: self._given is not None, patience, "an actor's state")
            self._asked = False
            return self._given

    def _between_rows(self) -> None:
        """To be called where a row is complete."""
        if self._asked:
            with self._at_work:
                self._asked, self._given = False, self._row_state("own")
                self._at_work.notify_all()

    def _open_episodes(self) -> int:
        raise NotImplementedError

    def _row_state(self, scope: Scope) -> State:
        raise NotImplementedError
