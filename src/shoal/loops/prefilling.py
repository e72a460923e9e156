"""Filling a replay with logged episodes before, and while, actors begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.acting import Policy
from shoal.acting.policy import LAST_REWARD
from shoal.data import Dataset
from shoal.loops.loop import EXACT, Loop
from shoal.program import NodeDied, current
from shoal.replay import Pattern, Replay, Writer
from shoal.retry import retry
from shoal.services.metrics import Metrics, Reporter
from shoal.state import Scope, State
from shoal.sync import sign_of_life
from shoal.types import Array, Columns

ROWS = 256  # that are sent together
VERSION = 0  # of the weights that acted: older than any that are learned
LAST_ACTION = "last_action"  # of a recurrent policy's state, counted from 1


class Prefill(Loop):
    """Sends every `total`-th episode of a dataset, from `part` on, as an actor would send it. One step is one block.

    Rows have no priority of their own: items begin with 1. Recurrent states begin at zero, with the last action and
    reward as they were; what a sequence burns in brings them up to date. Its writer has one life for a dataset, so
    that a replay which was restored with these rows drops them when they come again.
    """

    restart = True

    def __init__(
        self,
        make_policy: Callable[[int], Policy],
        patterns: Mapping[str, Pattern],
        replay: Replay,
        metrics: Metrics,
        *,
        path: str,
        part: int = 0,
        total: int = 1,
    ) -> None:
        super().__init__()
        self._data = Dataset(path)
        self._state = make_policy(current().seed).initial_state(1)  # whose rows a table has beside ours
        self._reporter = Reporter(metrics)
        self._episodes: Sequence[int] = range(part, len(self._data), total)
        self._episode = self._row = 0  # the next one among these, and its next row
        life = f"prefill {self._data.manifest.checksums} {part} {total}"
        self._writer = Writer(replay, dict(patterns), name=current().name, life=life)

    def step(self) -> bool:
        if self._finishing or self._episode >= len(self._episodes):
            return self._end()
        entry = self._data.index[self._episodes[self._episode]]
        first, rows = int(entry["first"]), int(entry["length"]) + 1
        begin, end = self._row, min(self._row + ROWS, rows)
        block = self._block(first, begin, end)
        self._episode, self._row = (self._episode + 1, 0) if end == rows else (self._episode, end)
        with self._still():
            self._send(block)
        sign_of_life()
        self._reporter.lap("prefilling")
        if self._episode == len(self._episodes):
            self._reporter.note(f"the replay was prefilled with {len(self._episodes):,} episodes of {self._data.path}")
        return True

    def _send(self, block: Columns) -> None:
        try:
            self._writer.append(block)
        except NodeDied:  # the writer has kept the block
            retry(self._writer.flush)

    def _block(self, first: int, begin: int, end: int) -> Columns:
        """Rows of an episode that begins at row `first`, [T, 1, ...]."""
        stored = self._data.rows[first + begin : first + end]
        names = [name for name in stored.dtype.names or () if name != "log_prob"]
        block: Columns = {name: np.ascontiguousarray(stored[name])[:, np.newaxis] for name in names}
        count = end - begin
        block["version"] = np.full((count, 1), VERSION, np.int64)
        for name, value in self._state.items():
            zeros = np.zeros((count, *np.shape(value)), np.asarray(value).dtype)
            block[f"state/{name}"] = self._remembered(name, zeros, first, begin, end)
        return block

    def _remembered(self, name: str, zeros: Array, first: int, begin: int, end: int) -> Array:
        """What the policy's state says of the step before: zero where the episode begins."""
        if name in (LAST_ACTION, LAST_REWARD):
            rows = slice(first + max(begin, 1) - 1, first + end - 1)
            before = self._data.rows["reward"][rows] if name == LAST_REWARD else self._data.rows["action"][rows] + 1
            zeros[len(zeros) - len(before) :, 0] = before
        return zeros

    def state_dict(self, scope: Scope = "own") -> State:
        """By itself it begins again, and what is there is dropped."""
        if scope == "own":
            return {}
        exact = {"episode": self._episode, "row": self._row, "writer": self._writer.state_dict()}
        return {EXACT: exact | {"reporter": self._reporter.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (exact := state.get(EXACT)) is not None:
            self._episode, self._row = exact["episode"], exact["row"]
            self._writer.load_state_dict(exact["writer"])
            self._reporter.load_state_dict(exact["reporter"])
