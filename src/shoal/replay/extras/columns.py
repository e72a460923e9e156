"""Operations on the columns of a sample, declared once with the table and applied to every batch in order.

An axis counts the item's own axes, whatever the layout of the batch: 0 is time for a column that has time, the others
are the row's. Reductions over time leave out padding and the bootstrap row, which a sequence or rollout has behind its
transitions for its observation only; `bootstrap=True` takes it in. `into` names the result; by default it replaces the
column.

    Table("replay", 1000, operations=(columns.mean("reward", into="mean_reward"), columns.transpose("image", (2, 0,
    1))))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.types import Array

from ..messages import Layout
from ..numbers import check_number


@dataclass
class Batch:
    """What operations work on."""

    data: dict[str, Array]
    layout: Layout
    timed: set[str]  # columns that have a time axis
    bootstrap: bool = False  # whether each item's last row is there for its observation only

    def get(self, name: str) -> Array:
        if name not in self.data:
            raise ValueError(f"a column operation names {name!r}; the sample has {', '.join(sorted(self.data))}")
        return self.data[name]

    def axis(self, name: str, axis: int, *, new: bool = False) -> int:
        """The array's axis for an item's axis; `new` when it is to be inserted there."""
        count = self.get(name).ndim - 1 + new
        if not -count <= axis < count:
            raise ValueError(f"a column operation names axis {axis} of {name!r}, whose items have {count} axes")
        axis %= count
        return 0 if axis == 0 and name in self.timed and self.layout == "time" else axis + 1

    def is_time(self, name: str, axis: int) -> bool:
        return name in self.timed and axis % (self.get(name).ndim - 1) == 0

    def put(self, name: str, values: Array, *, timed: bool) -> None:
        self.data[name] = np.ascontiguousarray(values)
        self.timed.discard(name)
        if timed:
            self.timed.add(name)

    def counted(self, name: str, axis: int, bootstrap: bool) -> Array | None:
        """Bool, with the column's two leading axes: which entries a reduction takes; None: all."""
        if not self.is_time(name, axis):
            return None
        mask = self.data.get("mask")
        if bootstrap or not self.bootstrap:
            return mask
        along = 0 if self.layout == "time" else 1
        values = self.get(name)
        rows = np.arange(values.shape[along]).reshape((-1, 1) if along == 0 else (1, -1))
        length = values.shape[along] if mask is None else mask.sum(along, keepdims=True)
        return np.broadcast_to(rows < length - 1, values.shape[:2])

    def without(self, name: str, counted: Array | None, neutral: Any) -> Array:
        """The column with `neutral` where it is not counted."""
        values = self.get(name)
        if counted is None:
            return values
        where = counted.reshape(counted.shape + (1,) * (values.ndim - 2))
        return np.where(where, values, np.asarray(neutral, values.dtype))


class Operation(ABC):
    """Changes a batch; `apply` is what the service calls (`messages.Operation`)."""

    def apply(self, data: dict[str, Array], timed: set[str], layout: Layout, bootstrap: bool) -> None:
        self.change(Batch(data, layout, timed, bootstrap))

    @abstractmethod
    def change(self, batch: Batch) -> None: ...


@dataclass(frozen=True)
class _Join(Operation):
    columns: tuple[str, ...]
    into: str
    axis: int
    new_axis: bool

    def change(self, batch: Batch) -> None:
        first = self.columns[0]
        axis = batch.axis(first, self.axis, new=self.new_axis)
        join = np.stack if self.new_axis else np.concatenate
        batch.put(self.into, join([batch.get(name) for name in self.columns], axis), timed=first in batch.timed)


def concatenate(columns: Sequence[str], *, into: str, axis: int = -1) -> Operation:
    """Several columns end to end along an axis that they have."""
    return _Join(tuple(columns), into, axis, new_axis=False)


def stack(columns: Sequence[str], *, into: str, axis: int = -1) -> Operation:
    """Several columns of the same shape side by side along a new axis."""
    return _Join(tuple(columns), into, axis, new_axis=True)


@dataclass(frozen=True)
class _Truncate(Operation):
    column: str
    start: int | None
    stop: int | None
    axis: int
    into: str

    def change(self, batch: Batch) -> None:
        axis = batch.axis(self.column, self.axis)
        cut = (slice(None),) * axis + (slice(self.start, self.stop),)
        batch.put(self.into, batch.get(self.column)[cut], timed=self.column in batch.timed)


def truncate(
    column: str, stop: int | None, *, start: int | None = None, axis: int = 0, into: str | None = None
) -> Operation:
    """What lies from `start` to before `stop` on an axis; negative numbers count from its end."""
    return _Truncate(column, start, stop, axis, into or column)


@dataclass(frozen=True)
class _Transpose(Operation):
    column: str
    axes: tuple[int, ...]
    into: str

    def change(self, batch: Batch) -> None:
        values = batch.get(self.column)
        leading = 2 if self.column in batch.timed else 1
        if sorted(self.axes) != list(range(values.ndim - leading)):
            raise ValueError(
                f"transpose names axes {self.axes} of {self.column!r} with {values.ndim - leading} row axes"
            )
        order = (*range(leading), *(axis + leading for axis in self.axes))
        batch.put(self.into, values.transpose(order), timed=self.column in batch.timed)


def transpose(column: str, axes: Sequence[int], *, into: str | None = None) -> Operation:
    """The axes of a row in another order (time not counted): (2, 0, 1) makes an image's channels the first."""
    return _Transpose(column, tuple(axes), into or column)


@dataclass(frozen=True)
class _Reduce(Operation):
    column: str
    function: Callable[..., Array]
    neutral: Any
    axis: int
    into: str
    bootstrap: bool
    keeps_axis: bool = False

    def change(self, batch: Batch) -> None:
        axis = batch.axis(self.column, self.axis)
        counted = batch.counted(self.column, self.axis, self.bootstrap)
        values = batch.without(self.column, counted, self._neutral(batch.get(self.column).dtype))
        timed = self.column in batch.timed and (self.keeps_axis or not batch.is_time(self.column, self.axis))
        batch.put(self.into, self.function(values, axis=axis), timed=timed)

    def _neutral(self, dtype: np.dtype[Any]) -> Any:
        if self.neutral in ("lowest", "highest"):
            limits = np.iinfo(dtype) if dtype.kind in "iu" else None
            if dtype.kind == "b":
                return self.neutral == "highest"
            if limits is None:
                return -np.inf if self.neutral == "lowest" else np.inf
            return limits.min if self.neutral == "lowest" else limits.max
        return self.neutral


def product(column: str, *, axis: int = 0, into: str | None = None, bootstrap: bool = False) -> Operation:
    return _Reduce(column, np.prod, 1, axis, into or column, bootstrap)


def cumulative_product(column: str, *, axis: int = 0, into: str | None = None, bootstrap: bool = False) -> Operation:
    """The product of everything up to and with each entry."""
    return _Reduce(column, np.cumprod, 1, axis, into or column, bootstrap, keeps_axis=True)


def minimum(column: str, *, axis: int = 0, into: str | None = None, bootstrap: bool = False) -> Operation:
    return _Reduce(column, np.min, "highest", axis, into or column, bootstrap)


def maximum(column: str, *, axis: int = 0, into: str | None = None, bootstrap: bool = False) -> Operation:
    return _Reduce(column, np.max, "lowest", axis, into or column, bootstrap)


@dataclass(frozen=True)
class _Sum(Operation):
    """Of entries weighted by powers of `discount`, or without it their mean."""

    column: str
    discount: float | None
    axis: int
    into: str
    bootstrap: bool

    def change(self, batch: Batch) -> None:
        axis = batch.axis(self.column, self.axis)
        counted = batch.counted(self.column, self.axis, self.bootstrap)
        values = batch.without(self.column, counted, 0)
        kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
        if self.discount is None:
            count: Any = values.shape[axis]
            if counted is not None:
                count = np.maximum(1, counted.sum(axis)).reshape(-1, *(1,) * (values.ndim - 2))
            result = values.sum(axis, dtype=np.float64) / count
        else:
            weights = self.discount ** np.arange(values.shape[axis])
            result = np.tensordot(np.moveaxis(values, axis, -1).astype(np.float64), weights, 1)
        timed = self.column in batch.timed and not batch.is_time(self.column, self.axis)
        batch.put(self.into, result.astype(kind), timed=timed)


def mean(column: str, *, axis: int = 0, into: str | None = None, bootstrap: bool = False) -> Operation:
    return _Sum(column, None, axis, into or column, bootstrap)


def discounted_sum(
    column: str, discount: float, *, axis: int = 0, into: str | None = None, bootstrap: bool = False
) -> Operation:
    """The sum of entries times discount**0, discount**1, … along an axis."""
    return _Sum(column, check_number("discount", discount, 0.0), axis, into or column, bootstrap)
