"""The newest rows of a writer, kept on its side for states and priorities of items that are not complete yet."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.types import Array

from .messages import Spans


class Recent:
    """The last `window` rows of some columns, [rows, environments, ...] each."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._columns: dict[str, Array] = {}
        self._room = 0  # rows that fit
        self._first = 0  # row number at place 0
        self._end = 0  # row number behind the last place that is filled

    def append(self, columns: Mapping[str, Array], count: int) -> None:
        """Add `count` rows; the columns are the same every time."""
        filled = self._end - self._first
        if filled + count > self._room:
            kept = min(filled, self._window)
            self._room = max(4 * self._window, kept + count)
            for name, values in columns.items():
                moved = np.empty((self._room, *values.shape[1:]), values.dtype)
                if kept:
                    moved[:kept] = self._columns[name][filled - kept : filled]
                self._columns[name] = moved
            self._first, filled = self._end - kept, kept
        for name, values in columns.items():
            self._columns[name][filled : filled + count] = values
        self._end += count

    def state_dict(self) -> dict[str, Any]:
        """The rows that are kept, and the number behind the last of them."""
        filled = self._end - self._first
        kept = min(filled, self._window)
        rows = {name: values[filled - kept : filled].copy() for name, values in self._columns.items()}
        return {"end": self._end, "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._columns, self._room = {}, 0
        self._first = self._end = state["end"]
        kept = max((len(rows) for rows in state["rows"].values()), default=0)
        if kept:
            self._first = self._end = state["end"] - kept
            self.append({name: np.asarray(rows) for name, rows in state["rows"].items()}, kept)

    def take_back(self, count: int) -> None:
        """Undo the last append."""
        self._end -= count

    def at(self, name: str, environment: Array, row: Array) -> Array:
        values: Array = self._columns[name][row - self._first, environment]
        return values

    def rows_of(self, spans: Spans, names: Sequence[str]) -> RecentRows:
        return RecentRows(self._columns, names, spans, self._first)


class RecentRows:
    """The rows of new items, for a view to gather from as the service will."""

    def __init__(self, columns: Mapping[str, Array], names: Sequence[str], spans: Spans, first: int) -> None:
        self.names = names
        self.available: Container[str] = columns
        self.length = spans.length
        self.history = spans.history
        self.count = len(spans)
        self._columns = columns
        self._environment = spans.environment
        self._row = spans.start - first
        self.start = self._row * next(iter(columns.values())).shape[1] + spans.environment
        self._environments = next(iter(columns.values())).shape[1]

    def addresses(self, offsets: Array, trailing: int = 0) -> Array:
        shape = (self.count,) + (1,) * trailing
        row = self._row.reshape(shape) + offsets
        addresses: Array = row * self._environments + self._environment.reshape(shape)
        return addresses

    def take(self, name: str, addresses: Array) -> Array:
        column = self._columns[name]
        return column.reshape(-1, *column.shape[2:])[addresses]
