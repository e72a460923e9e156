"""From rows as actors write them down to whole episodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shoal import tree
from shoal.data.episodes import ACTION, LOG_PROB, OBSERVATION, REWARD, TERMINATED, VALID, Episode
from shoal.types import Array, Arrays, Columns

_KEPT = (ACTION, REWARD, TERMINATED, VALID, LOG_PROB)


class Cutter:
    """Takes blocks of rows [T, B, ...], one after another, and gives the episodes that each of them completes.

    A row that is no transition holds the final observation of the episode before it. Continuous actions are stored as
    they were done, within their bounds `low` and `high`; of those that were clipped nobody knows the probability.
    """

    def __init__(self, low: Array | None = None, high: Array | None = None, *, whole: bool = True) -> None:
        """Unless `whole`, the first rows may be in the middle of episodes, which are then left out."""
        self._low, self._high, self._whole = low, high, whole
        self._begun: set[int] = set()  # environments that have come to an end since, where that matters
        self._open: dict[int, list[Columns]] = {}  # rows of the running episodes, by environment

    def feed(self, block: Arrays) -> Iterator[tuple[int, Episode]]:
        """Episodes with their environments' numbers. The block may be used again afterwards."""
        columns = {name: block[name] for name in block if name in _KEPT or tree.is_under(name, OBSERVATION)}
        valid = columns[VALID]
        for environment in range(valid.shape[1]):
            begin = 0
            for end in (*np.flatnonzero(~valid[:, environment]).tolist(), None):
                stop = len(valid) if end is None else end + 1
                if stop > begin:
                    part = {name: column[begin:stop, environment].copy() for name, column in columns.items()}
                    self._open.setdefault(environment, []).append(part)
                if end is not None:
                    episode = self._finished(self._open.pop(environment))
                    if not self._whole and environment not in self._begun:
                        self._begun.add(environment)
                    elif episode is not None:
                        yield environment, episode
                begin = stop

    def _finished(self, parts: list[Columns]) -> Episode | None:
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        steps = slice(0, len(rows[VALID]) - 1)
        if steps.stop == 0:  # an environment that was replaced before it made a step
            return None
        actions = rows[ACTION][steps]
        chances = rows[LOG_PROB][steps] if LOG_PROB in rows else None
        if self._low is not None and self._high is not None:
            actions = np.clip(actions, self._low, self._high)
            clipped = (actions != rows[ACTION][steps]).reshape(len(actions), -1).any(1)
            chances = None if chances is None else np.where(clipped, np.float32(np.nan), chances)
        terminated = bool(rows[TERMINATED][steps.stop - 1])
        observations = {name: rows[name] for name in rows if tree.is_under(name, OBSERVATION)}
        return Episode(observations, actions, rows[REWARD][steps], terminated, not terminated, chances)
