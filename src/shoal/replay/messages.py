"""What travels between writers, the service and readers: plain dataclasses of numpy arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypeVar

import numpy as np

from shoal.types import Array

if TYPE_CHECKING:
    from .views import View

Layout = Literal["time", "batch"]
Rows = TypeVar("Rows", int, Array)  # numbers of rows


class Operation(Protocol):
    """Changes the columns of a sample in place, as those of `extras.columns` do."""

    def apply(self, data: dict[str, Array], timed: set[str], layout: Layout, bootstrap: bool) -> None:
        """`timed` names the columns that have a time axis; `bootstrap`: each item's last row is there for its
        observation only."""


@dataclass(eq=False, slots=True)
class Spans:
    """Where items lie: each is `length` rows of one environment's stream, counted from row `start` of its writer.

    The first `history` of those rows only serve frame stacks; the item proper begins after them.
    """

    environment: Array  # int [items]
    start: Array  # int [items]
    length: Array  # int [items]
    history: Array  # int [items]

    def __len__(self) -> int:
        return len(self.start)

    def select(self, which: Array) -> Spans:
        return Spans(self.environment[which], self.start[which], self.length[which], self.history[which])

    def __reduce__(self) -> tuple[Any, ...]:
        """One array travels faster than four, and small numbers in half the bytes."""
        small = len(self) == 0 or self.start.max() < 2**31
        packed = np.empty((4, len(self)), np.int32 if small else np.int64)
        packed[0], packed[1], packed[2], packed[3] = self.environment, self.start, self.length, self.history
        return _unpack_spans, (packed,)


def _unpack_spans(packed: Array) -> Spans:
    return Spans(*packed.astype(np.int64))


@dataclass(eq=False, slots=True)
class Items:
    """New items of one table, as a writer describes them."""

    view: View  # how a sample of this table is formed out of rows
    spans: Spans
    priorities: Array  # float64 [items]
    states: dict[str, Array] = field(default_factory=dict)  # "state/…" columns at each item's first row, [items, ...]

    def state_dict(self) -> dict[str, Any]:
        """All but the view, which is the writer's pattern's."""
        spans = self.spans
        packed = np.stack([np.asarray(part) for part in (spans.environment, spans.start, spans.length, spans.history)])
        return {"spans": packed, "priorities": self.priorities.copy(), "states": copy.deepcopy(self.states)}

    @staticmethod
    def from_state(view: View, state: Mapping[str, Any]) -> Items:
        return Items(view, _unpack_spans(state["spans"]), state["priorities"], dict(state["states"]))


def version_row(first: Rows, length: Rows) -> Rows:
    """The row whose version an item belongs to: its last. Its first was acted on before new weights came, as the one on
    which the item before it bootstraps."""
    row: Rows = first + length - 1
    return row


@dataclass(eq=False, slots=True)
class Block:
    """One call of a writer: rows of all its environments and the items that they complete."""

    writer: str
    life: str  # another one whenever a writer of the same name starts again; never a clock
    sequence: int  # rises by one per call; a repeat is dropped
    first_row: int  # number of the block's first row in the writer's streams
    window: int  # the longest item of this writer, in rows
    columns: dict[str, Array]  # [T, B, ...]
    items: dict[str, Items]

    def state_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("writer", "life", "sequence", "first_row", "window")}
        items = {table: items.state_dict() for table, items in self.items.items()}
        return {**plain, "columns": copy.deepcopy(self.columns), "items": items}

    @staticmethod
    def from_state(views: Mapping[str, View], state: Mapping[str, Any]) -> Block:
        items = {table: Items.from_state(views[table], part) for table, part in state["items"].items()}
        return Block(**{**state, "columns": dict(state["columns"]), "items": items})


@dataclass(slots=True)
class Inserted:
    """What became of a block's items, per table."""

    accepted: dict[str, int]
    refused: dict[str, int]  # by a quota, or because their first rows were lost in a restart of the service
    repeated: bool = False  # the block had been received before; nothing was done
    cut: int = 0  # of the refused, those whose first rows were lost


@dataclass(frozen=True)
class Window:
    """A column that is a slice of another array, so that what two columns share is gathered and sent once."""

    source: str
    axis: int
    start: int
    stop: int


@dataclass(frozen=True)
class Mass:
    """How much a table has to draw from."""

    size: int
    mass: float  # sum of what its sampler draws in proportion to
    largest: float  # batch that may be asked for at once
    independent: bool  # items are drawn at random and stay: drawing some does not change what is left


@dataclass(eq=False)
class Sample:
    """A batch: `data` in the asked layout, and about each item its key, probability, priority and times sampled."""

    arrays: dict[str, Array]  # contiguous
    keys: Array  # int64 [batch], given back to `update_priorities`
    probabilities: Array  # float64 [batch], of drawing the item when it was drawn
    priorities: Array  # float64 [batch]
    times_sampled: Array  # int32 [batch], this time included
    table_size: int
    mass: float  # sum over the table of what the sampler draws in proportion to
    layout: Layout = "time"
    timed: frozenset[str] = frozenset()  # columns that have a time axis
    windows: dict[str, Window] = field(default_factory=dict)

    @cached_property
    def data(self) -> dict[str, Array]:
        """Columns by name. Columns formed as windows share memory with each other: copy before writing to them."""
        if not self.windows:
            return self.arrays
        sources = {window.source for window in self.windows.values()}
        data = {name: array for name, array in self.arrays.items() if name not in sources}
        for name, window in self.windows.items():
            cut = (slice(None),) * window.axis + (slice(window.start, window.stop),)
            data[name] = self.arrays[window.source][cut]
        return data

    def with_data(self, data: dict[str, Array], timed: frozenset[str]) -> Sample:
        """The same sample with other columns."""
        return replace(self, arrays=data, windows={}, timed=timed)

    @property
    def versions(self) -> Array:
        """The version of weights that each item belongs to, int64 [batch] (`version_row`)."""
        version = self.data["version"]
        if "version" not in self.timed:
            return version
        axis = 0 if self.layout == "time" else 1
        there = self.data.get("mask", np.ones(version.shape, np.bool_))
        lengths: Array = np.asarray(there.sum(axis))
        last = np.expand_dims(version_row(np.zeros_like(lengths), lengths), axis)  # behind it there are zeros
        own: Array = np.take_along_axis(version, last, axis).squeeze(axis)
        return own

    def __len__(self) -> int:
        return len(self.keys)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        packed, places = _pack(
            self.keys, self.probabilities, self.priorities, self.times_sampled, *self.arrays.values()
        )
        rest = (self.table_size, self.mass, self.layout, self.timed, self.windows)
        buffer = PickleBuffer(packed) if protocol.__index__() >= 5 else packed
        return _unpack_sample, (buffer, places, tuple(self.arrays), *rest)

    def importance_weights(self, beta: float, largest: Callable[[float], float] = float) -> Array:
        """(N·P)^(-beta) divided by the largest of this batch (Schaul 2016), float32 [batch].

        Where this is only a part of a batch, `largest` makes the whole one's maximum of this part's.
        """
        weights: Array = (self.table_size * self.probabilities) ** -beta
        scaled: Array = (weights / largest(weights.max())).astype(np.float32)
        return scaled


def _unpack_sample(packed: Any, places: list[Any], names: tuple[str, ...], *rest: Any) -> Sample:
    arrays: list[Any] = [
        place if type(place) is not tuple else np.ndarray(place[0], place[1], packed, place[2]) for place in places
    ]
    about = len(places) - len(names)
    return Sample(dict(zip(names, arrays[about:])), *arrays[:about], *rest)


_SMALL = 1 << 15  # bytes
_PADDING = bytes(8)


def _pack(*arrays: Array) -> tuple[bytearray, list[Any]]:
    """Small arrays as one, since to describe each by itself takes longer than to send it: their bytes end to end, and
    for each of `arrays` its shape, dtype and place there, or a large one itself."""
    parts: list[Any] = []
    places: list[Any] = []
    end = 0
    for array in arrays:
        if array.nbytes >= _SMALL or array.dtype.kind not in "biuf" or not array.flags.c_contiguous:
            places.append(array)
            continue
        places.append((array.shape, array.dtype.str, end))
        gap = -array.nbytes % len(_PADDING)
        parts += (array, _PADDING[:gap])
        end += array.nbytes + gap
    return bytearray().join(parts), places
