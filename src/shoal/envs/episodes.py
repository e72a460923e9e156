"""Returns and lengths of finished episodes, settled for many steps at once to keep the step itself short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shoal.types import Array


class Episode(NamedTuple):
    """A finished episode: the sum of its raw rewards and the number of its valid steps."""

    return_: float
    length: int


class EpisodeLog:
    """Collects rewards and ends, a row per step; with a `pause` the row after an end is the reset and belongs to no
    episode."""

    def __init__(self, count: int, rows: int = 128, pause: bool = True) -> None:
        self._next = 2 if pause else 1  # rows from an end to the first step of the next episode
        self._rewards = np.zeros((rows, count), np.float32)
        self._done = np.zeros((rows, count), np.bool_)
        self._row = 0
        self._return = np.zeros(count, np.float64)  # of the running episodes, as far as settled
        self._begin = np.zeros(count, np.int64)  # where the running episodes began, counted from row 0
        self._finished: list[tuple[Array, Array]] = []  # (returns, lengths)

    def add(self, reward: Array, done: Array) -> None:
        row = self._row
        self._rewards[row] = reward
        self._done[row] = done
        self._row = row + 1
        if self._row == len(self._done):
            self._settle()

    def restart(self) -> None:
        """The running episodes are given up and new ones begin with the next row."""
        self._settle()
        self._return[:] = 0.0
        self._begin[:] = 0

    def cut(self, which: Array) -> None:
        """These episodes, bool [B], end before the coming row, which belongs to none; new ones begin after it."""
        self._settle()
        ended = which & (self._begin < 0)
        if ended.any():
            self._finished.append((self._return[ended].copy(), -self._begin[ended]))
        self._return[which] = 0.0
        self._begin[which] = 1

    def finished(self) -> list[Episode]:
        """The episodes that ended since this was last asked, in the order they ended."""
        self._settle()
        finished, self._finished = self._finished, []
        return [
            Episode(return_, length)
            for returns, lengths in finished
            for return_, length in zip(returns.tolist(), lengths.tolist())
        ]

    def state_dict(self) -> dict[str, Any]:
        """The running episodes, and those that ended and were not asked for."""
        self._settle()
        ended = [[returns.copy(), lengths.copy()] for returns, lengths in self._finished]
        return {"return": self._return.copy(), "begin": self._begin.copy(), "finished": ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._row = 0
        self._return[:] = state["return"]
        self._begin[:] = state["begin"]
        self._finished = [(np.array(returns), np.array(lengths)) for returns, lengths in state["finished"]]

    def _settle(self) -> None:
        rows, self._row = self._row, 0
        if rows == 0:
            return
        total = self._rewards[:rows].astype(np.float64).cumsum(0)
        env, row = np.divmod(np.flatnonzero(self._done[:rows].T), rows)  # ends by environment, then by time
        if len(env):
            reached = total[row, env]
            again = (env[1:] == env[:-1]).nonzero()[0]  # the next end is of the same environment
            before, begin = -self._return[env], self._begin[env]
            before[again + 1] = reached[again]
            begin[again + 1] = row[again] + self._next
            order = row.argsort(kind="stable")
            self._finished.append(((reached - before)[order], (row + 1 - begin)[order]))
            self._return[env] = -reached  # where there are several, the last one stays
            self._begin[env] = row + self._next
        self._return += total[-1]
        self._begin -= rows
