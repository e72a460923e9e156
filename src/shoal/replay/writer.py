"""The writing side: a writer per actor takes blocks of rows of all its environments and sends them with their items."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from shoal.types import Array, Arrays

from .checks import ColumnShapes, check_rows, shape_of, shapes_of
from .messages import Block, Inserted, Items, Spans
from .numbers import check_priorities, check_whole
from .patterns import Appended, Pattern
from .recent import Recent

Priority = float | Callable[[dict[str, Array]], Array]
Priorities = Priority | Mapping[str, Priority] | None


class Receiver(Protocol):
    """What a writer needs of the service, or of a client to it."""

    def insert(self, block: Block, timeout: float | None = None) -> Inserted: ...
    def forget_writer(self, name: str) -> None: ...


class Writer:
    """Turns the rows of an actor's environments into items of tables.

    `patterns` says, per table, which rows make an item. Every `append` is one call to the service; with `rows` above
    1, small appends are collected until there are that many. `priority_columns` are the columns that a priority
    function reads; those that are also `transient` are not stored. A writer that replaces one of the same `name` lets
    the service drop what it kept for the old one: each has a `life` of its own, by default a random name.
    """

    def __init__(
        self,
        replay: Receiver,
        patterns: Mapping[str, Pattern],
        *,
        name: str | None = None,
        life: str | None = None,
        rows: int = 1,
        priority_columns: Iterable[str] = (),
        transient: Iterable[str] = (),
    ) -> None:
        if not patterns:
            raise ValueError("a writer needs a pattern for at least one table")
        self.name = name or uuid.uuid4().hex
        self._life = life or uuid.uuid4().hex
        self._replay = replay
        self._patterns = dict(patterns)
        self._window = max(pattern.rows for pattern in self._patterns.values())
        self._rows = check_whole("rows", rows, 1)
        self._priority_columns = tuple(priority_columns)
        self._transient = frozenset(transient)
        self._sequence = 0
        self._next_row = 0  # number of the next row that is appended
        self._next_position: Array | None = None  # of each environment's next row in its episode
        self._looks_back = any(getattr(pattern, "looks_back", False) for pattern in self._patterns.values())
        self._recent = Recent(self._window)
        self._states: list[str] = []  # columns that items keep at their first row
        self._stored: list[str] = []  # columns that are sent
        self._read: list[str] = []  # columns that a priority function may read
        self._kept: list[str] = []  # columns that are kept here for a while
        self._kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None = None  # shape and dtype of columns
        self._arrays: ColumnShapes | None = None  # what the columns of the last append looked like
        self._blocks: list[dict[str, Array]] = []  # appended and not yet sent
        self._items: dict[str, list[Items]] = {}
        self._first_unsent = 0
        self._unsent: Block | None = None  # sent without an answer
        self.cut_items = 0  # that came to nothing, as their first rows were lost with a service

    def append(self, columns: Arrays, priorities: Priorities = None, *, timeout: float | None = None) -> Inserted:
        """Add rows: columns [T, B, ...] of the stream format, "state/…" being the recurrent state before each row.

        `priorities` of the items that these rows complete: a number (1 by default), a function of the columns as a
        sample gives them ([time, items, ...]) that returns one priority per item, or one of both per table. After a
        ReplayTimeout the rows are kept; `flush` or the next `append` goes on with them.
        """
        count, environments = self._check(columns)
        items = self._items_of(columns, count, environments, priorities)
        stored = {name: columns[name] for name in self._stored}
        for table, new in items.items():
            self._items.setdefault(table, []).append(new)
        waiting = self._next_row - self._first_unsent
        if waiting < self._rows:
            stored = {name: values.copy() for name, values in stored.items()}  # the caller may use its arrays again
        self._blocks.append(stored)
        return self.flush(timeout=timeout) if waiting >= self._rows else Inserted({}, {})

    def flush(self, *, timeout: float | None = None) -> Inserted:
        """Send what was collected or what a timeout left, and wait for it to be accepted."""
        results = []
        if self._unsent is not None:
            results.append(self._send(self._unsent, timeout))
        if self._blocks:
            columns = self._blocks[0]
            if len(self._blocks) > 1:
                columns = {name: np.concatenate([block[name] for block in self._blocks]) for name in columns}
            items = {table: _join(parts) for table, parts in self._items.items()}
            block = Block(self.name, self._life, self._sequence, self._first_unsent, self._window, columns, items)
            self._sequence += 1
            self._blocks, self._items, self._first_unsent = [], {}, self._next_row
            results.append(self._send(block, timeout))
        return results[-1] if results else Inserted({}, {})

    @property
    def life(self) -> str:
        return self._life

    def close(self) -> None:
        """Send what is left and let the service drop the rows that it kept for unfinished items."""
        self.flush()
        self._replay.forget_writer(self.name)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is not with the service: plain data, with which a writer of the same patterns goes on in the
        same life. A service that goes on with it must have been saved at the same moment."""
        position = self._next_position
        return {
            "life": self._life,
            "sequence": self._sequence,
            "next_row": self._next_row,
            "first_unsent": self._first_unsent,
            "next_position": None if position is None else position.copy(),
            "recent": self._recent.state_dict(),
            "kinds": {name: [list(shape), dtype.str] for name, (shape, dtype) in (self._kinds or {}).items()},
            "blocks": [{name: values.copy() for name, values in block.items()} for block in self._blocks],
            "items": {table: [items.state_dict() for items in parts] for table, parts in self._items.items()},
            "unsent": None if self._unsent is None else self._unsent.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._life, self._sequence = state["life"], state["sequence"]
        self._next_row, self._first_unsent = state["next_row"], state["first_unsent"]
        self._next_position = None if state["next_position"] is None else np.array(state["next_position"])
        if state["kinds"]:
            self._begin({name: (tuple(shape), np.dtype(kind)) for name, (shape, kind) in state["kinds"].items()})
        self._recent.load_state_dict(state["recent"])
        views = {table: pattern.view for table, pattern in self._patterns.items()}
        self._blocks = [dict(block) for block in state["blocks"]]
        self._items = {
            table: [Items.from_state(views[table], part) for part in parts] for table, parts in state["items"].items()
        }
        self._unsent = None if state["unsent"] is None else Block.from_state(views, state["unsent"])

    def _send(self, block: Block, timeout: float | None) -> Inserted:
        self._unsent = block
        try:
            result = self._replay.insert(block, timeout)
        except ValueError:  # it would be refused again
            self._unsent = None
            raise
        except Exception:
            self._unsent = replace(block, columns={name: values.copy() for name, values in block.columns.items()})
            raise
        self._unsent = None
        self.cut_items += result.cut
        return result

    def _items_of(self, columns: Arrays, count: int, environments: int, priorities: Priorities) -> dict[str, Items]:
        """The items that these rows complete, per table."""
        valid = columns.get("valid")
        if valid is None:
            valid = np.ones((count, environments), bool)
        if self._next_position is None:
            self._next_position = np.zeros(environments, np.int64)
        if len(self._next_position) != environments:
            raise ValueError(
                f"these rows are of {environments} environments and the ones before of {len(self._next_position)}; "
                "open a new writer when their number changes"
            )
        block = Appended(self._next_row, valid, self._next_position, self._position_of if self._looks_back else None)
        kept = {name: columns[name] for name in self._kept}
        if self._looks_back:
            kept[_POSITION] = block.position
        if kept:
            self._recent.append(kept, count)
        items = {}
        try:
            for table, pattern in self._patterns.items():
                spans = pattern.spans(block)
                items[table] = Items(
                    view=pattern.view,
                    spans=spans,
                    priorities=self._priorities_of(table, pattern, spans, priorities),
                    states=self._states_of(spans),
                )
        except BaseException:
            if kept:
                self._recent.take_back(count)
            raise
        self._next_position = block.next_position
        self._next_row += count
        return items

    def _check(self, columns: Arrays) -> tuple[int, int]:
        """Rows and environments of columns that are those of the first append, or a ValueError."""
        arrays = shapes_of(columns)
        if arrays == self._arrays:  # as in the append before: nothing to look at again
            return shape_of(columns)
        shape = check_rows(columns)
        kinds = {name: (values.shape[2:], values.dtype) for name, values in columns.items()}
        if self._kinds is None:
            self._begin(kinds)
        elif kinds != self._kinds:
            name = next(name for name in {**kinds, **self._kinds} if kinds.get(name) != self._kinds.get(name))
            raise ValueError(
                f"column {name!r} is {_kind(kinds.get(name))} in these rows and {_kind(self._kinds.get(name))} before; "
                "a writer's columns stay the same"
            )
        self._arrays = arrays
        return shape

    def _begin(self, kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Sort out the columns of the first append."""
        for name in (*self._priority_columns, *self._transient):
            if name not in kinds:
                raise ValueError(f"column {name!r} is named by the writer; these rows have {', '.join(sorted(kinds))}")
        self._kinds = kinds
        self._states = [name for name in kinds if name.startswith("state/")]
        self._stored = [name for name in kinds if name not in self._states and name not in self._transient]
        self._read = []
        if self._priority_columns:
            self._read = [name for name in kinds if name in self._priority_columns or name in _ALWAYS_READ]
        self._kept = self._states + self._read

    def _states_of(self, spans: Spans) -> dict[str, Array]:
        row = spans.start + spans.history if self._states else spans.start
        return {name: self._recent.at(name, spans.environment, row) for name in self._states}

    def _position_of(self, environment: Array, row: Array) -> Array:
        return self._recent.at(_POSITION, environment, row)

    def _priorities_of(self, table: str, pattern: Pattern, spans: Spans, given: Priorities) -> Array:
        rule = given.get(table) if given is not None and isinstance(given, Mapping) else given
        if rule is None:
            return np.ones(len(spans))
        if not callable(rule):
            priorities = np.full(len(spans), rule, np.float64)
        elif not len(spans):
            priorities = np.empty(0)
        else:
            if not self._priority_columns:
                raise ValueError("a priority function needs Writer(..., priority_columns=[the columns that it reads])")
            data, _ = pattern.view.gather(self._recent.rows_of(spans, self._read), "time")
            priorities = np.asarray(rule(data), np.float64)
            if priorities.shape != (len(spans),):
                raise ValueError(
                    f"the priority function for table {table!r} gave shape {priorities.shape} for {len(spans)} items"
                )
        check_priorities(table, priorities)
        return priorities


_POSITION = "position in episode"
_ALWAYS_READ = ("reward", "terminated", "valid")  # what views need besides the columns asked for


def _kind(kind: tuple[tuple[int, ...], np.dtype[Any]] | None) -> str:
    return "missing" if kind is None else f"{kind[1]} of shape {kind[0]}"


def _join(parts: list[Items]) -> Items:
    if len(parts) == 1:
        return parts[0]
    spans = [part.spans for part in parts]
    joined = Spans(
        *(
            np.concatenate([getattr(span, name) for span in spans])
            for name in ("environment", "start", "length", "history")
        )
    )
    states = {name: np.concatenate([part.states[name] for part in parts]) for name in parts[0].states}
    return Items(parts[0].view, joined, np.concatenate([part.priorities for part in parts]), states)
