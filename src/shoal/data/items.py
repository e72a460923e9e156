"""The items of a dataset as a pattern sees them, without a list of them: an episode's depend on its length alone."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.data.dataset import Dataset
from shoal.data.episodes import BadData
from shoal.replay.messages import Layout
from shoal.replay.patterns import Appended, Pattern
from shoal.types import Array, Columns

_SMALL_PART = 8  # a column that is a smaller part of a large row is read by itself
_LARGE_ROW = 1024  # bytes


@dataclass(frozen=True, eq=False)
class Placed:
    """Where items lie among the rows: `length` rows from `start`, of which the first `history` serve frame stacks."""

    start: Array  # int64 [items]
    length: Array
    history: Array


class Items:
    """Numbered from 0, episode after episode."""

    def __init__(self, dataset: Dataset, pattern: Pattern) -> None:
        lengths, which = np.unique(dataset.lengths, return_inverse=True)
        found = [_of_episode(pattern, int(length)) for length in lengths]
        counts = np.array([len(placed.start) for placed in found], np.int64)
        self._first_row: Array = dataset.index["first"]
        self._begin = np.concatenate([[0], np.cumsum(counts)])[which]  # where an episode's items are in the lists
        self._ends = np.cumsum(counts[which])  # items up to the end of each episode
        self._start, self._length, self._history = (
            np.concatenate([getattr(placed, name) for placed in found]) for name in ("start", "length", "history")
        )
        self.count = int(self._ends[-1])
        if not self.count:
            raise BadData(
                f"{dataset.path} has no item to learn from: its longest episode has {int(lengths[-1]):,} steps, and "
                f"items are of up to {pattern.rows - 1:,}."
            )

    def __len__(self) -> int:
        return self.count

    def place(self, numbers: Array) -> Placed:
        episode = self._ends.searchsorted(numbers, side="right")
        before = np.where(episode > 0, self._ends[episode - 1], 0)
        place = self._begin[episode] + (numbers - before)
        start = self._first_row[episode] + self._start[place]
        return Placed(start, self._length[place].astype(np.int64), self._history[place].astype(np.int64))


def _of_episode(pattern: Pattern, length: int) -> Placed:
    """The items of an episode of so many steps, as a writer finds them."""
    valid = np.ones((length + 1, 1), np.bool_)
    valid[-1] = False
    block = Appended(0, valid, np.zeros(1, np.int64), past=lambda environment, row: row)
    spans = pattern.spans(block)
    return Placed(
        np.asarray(spans.start, np.int64), np.asarray(spans.length, np.int32), np.asarray(spans.history, np.int32)
    )


class DatasetRows:
    """The rows of a batch's items (`shoal.replay.views.Rows`)."""

    def __init__(self, dataset: Dataset, placed: Placed) -> None:
        self.names: Sequence[str] = dataset.record.names or ()
        self.available: Container[str] = self.names
        self.start, self.length, self.history = placed.start, placed.length, placed.history
        self.count = len(placed.start)
        self._dataset = dataset
        self._gathered: list[tuple[Array, Array]] = []  # addresses, and the rows there

    def addresses(self, offsets: Array, trailing: int = 0) -> Array:
        addresses: Array = self.start.reshape(-1, *(1,) * trailing) + offsets
        return addresses

    def take(self, name: str, addresses: Array) -> Array:
        """All columns of a row lie together: they are read at once, and a batch takes them from what was read."""
        for known, rows in self._gathered:
            if known is addresses:
                return np.ascontiguousarray(rows[name])
        data, record = self._dataset, self._dataset.record
        if record.itemsize > _LARGE_ROW and record[name].itemsize * _SMALL_PART < record.itemsize:
            alone: Array = data.rows[name][addresses]
            return alone
        raw = data.raw.take(addresses, 0, mode="clip")  # right by construction, and faster than checking each
        rows = raw.view(record)[..., 0]
        self._gathered.append((addresses, rows))
        return np.ascontiguousarray(rows[name])


def gather(dataset: Dataset, pattern: Pattern, placed: Placed, layout: Layout = "time") -> Columns:
    """The columns of items, as the pattern's view forms them."""
    data, windows = pattern.view.gather(DatasetRows(dataset, placed), layout)
    for name, window in windows.items():
        cut = (slice(None),) * window.axis + (slice(window.start, window.stop),)
        data[name] = data[window.source][cut]
    for source in {window.source for window in windows.values()}:
        del data[source]
    return data
