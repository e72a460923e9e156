"""How rows become a batch: the whole item, or an n-step transition reduced from it.

A view is part of a table's items: the writer's pattern names it, the service gathers with it. A view of your own is a
dataclass with the two members of `View`, importable where the service runs.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol

import numpy as np

from shoal.types import Array

from .. import buffers
from .chunks import Store
from .frames import Padding, stack_positions
from .messages import Layout, Window
from .numbers import LONGEST_ITEM, check_number, check_whole

_ZERO = np.float32(0.0)
_MOST_FRAMES = 1024  # in a stack

Gathered = tuple[dict[str, Array], dict[str, Window]]  # contiguous arrays, and columns that are slices of them


class View(Protocol):
    @property
    def timed(self) -> bool: ...  # whether gathered columns have a time axis

    @property
    def needs(self) -> Sequence[str]: ...  # columns that it cannot do without

    def gather(self, rows: Rows, layout: Layout) -> Gathered: ...


class Rows(Protocol):
    """The rows of a batch's items. Offsets count from an item's first row, the history for frame stacks included."""

    names: Sequence[str]  # columns that are wanted
    available: Container[str]  # columns that there are
    start: Array  # int64 [items], address of the first row
    length: Array  # int64 [items], history included
    history: Array  # int64 [items]
    count: int

    def addresses(
        self, offsets: Array, trailing: int = 0
    ) -> Array: ...  # the items' axis has `trailing` axes behind it
    def take(self, name: str, addresses: Array) -> Array: ...  # [*addresses.shape, ...]


class StoredRows:
    """Rows in a store."""

    def __init__(self, store: Store, names: Sequence[str], items: Array) -> None:
        self.names = names
        self.available: Container[str] = store.columns
        self.start = items["start"].copy()
        self.length = items["length"].astype(np.int64)
        self.history = items["history"].astype(np.int64)
        self.count = len(items)
        self._store = store
        place = self.start & store.mask
        crossing = (place + self.length > store.length).nonzero()[0]  # items that reach into further chunks
        self._crossing = crossing
        if len(crossing):
            self._first = (self.start - place)[crossing]  # where their first chunk begins
            self._chain = store.chain(self._first)  # now: when items are gone the chunks may be linked anew

    def addresses(self, offsets: Array, trailing: int = 0) -> Array:
        inner = (1,) * trailing
        addresses: Array = self.start.reshape(-1, *inner) + offsets
        count = len(self._crossing)
        if count:
            which: Any = (..., self._crossing, *(slice(None) for _ in inner))
            part = addresses if count == self.count else addresses[which]
            part -= self._first.reshape(-1, *inner)
            chunk = part >> self._store.shift
            chunk *= count
            chunk += np.arange(count).reshape(-1, *inner)
            part &= self._store.mask
            part += self._chain.take(chunk)
            if part is not addresses:
                addresses[which] = part
        return addresses

    def take(self, name: str, addresses: Array) -> Array:
        column = self._store.columns[name]
        if self._store.files:
            self._store.prefetch(name, addresses)
        shape = addresses.shape + column.shape[1:]
        small = addresses.size * column.strides[0] < buffers.SMALL
        out = np.empty(shape, column.dtype) if small else buffers.empty(shape, column.dtype)
        # "clip" because addresses are right by construction, and it is 3x faster than checking each
        return column.take(addresses, 0, out, "clip")


@dataclass(frozen=True)
class Whole:
    """All rows of an item, [rows, batch, ...] or [batch, rows, ...].

    With `masked`, items may be shorter: the rest is zeros, and the bool column "mask" is True on rows that exist. With
    `bootstrap`, an item's last row is there for its observation only; column operations over time leave it out.
    """

    rows: int
    masked: bool = False
    stack: tuple[tuple[str, int], ...] = ()
    padding: Padding = "repeat"
    bootstrap: bool = False

    def __post_init__(self) -> None:
        check_whole("rows of a view", self.rows, 1, LONGEST_ITEM)
        _check_stack(self.stack, self.padding)

    @property
    def timed(self) -> bool:
        return True

    @property
    def needs(self) -> Sequence[str]:
        return [name for name, _ in self.stack]

    def gather(self, rows: Rows, layout: Layout) -> Gathered:
        steps = np.arange(self.rows)
        history, lengths = rows.history, rows.length - rows.history
        trailing = 0 if layout == "time" else 1
        steps = steps[:, None] if layout == "time" else steps[None, :]
        if trailing:
            history, lengths = history[:, None], lengths[:, None]
        ragged = self.masked and np.minimum.reduce(lengths, axis=None) < self.rows
        mask = steps < lengths if ragged else np.ones(np.broadcast_shapes(steps.shape, lengths.shape), bool)
        position = np.minimum(steps, lengths - 1) if ragged else steps
        addresses = rows.addresses(position + history if history.any() else position, trailing)
        data = {name: rows.take(name, addresses) for name in rows.names if name not in dict(self.stack)}
        for name, count in self.stack:
            if name not in rows.names:
                continue
            valid = rows.take("valid", addresses) if "valid" in rows.available else np.ones(mask.shape, bool)
            first = self._episode_starts(valid, position, history, layout)
            taken, padded = stack_positions(np.broadcast_to(position, mask.shape), first, count)
            data[name] = rows.take(name, rows.addresses(taken + history[..., None], trailing + 1))
            if self.padding == "zero":
                data[name][padded] = 0
        if ragged:
            for array in data.values():
                array[~mask] = 0
        if self.masked:
            data["mask"] = mask
        return data, {}

    def _episode_starts(self, valid: Array, position: Array, history: Array, layout: Layout) -> Array:
        """Row at which each row's episode begins, counted from the item's first; negative when within its history."""
        axis = 0 if layout == "time" else 1
        behind = np.roll(valid, 1, axis)
        edge = (slice(None),) * axis + (0,)
        behind[edge] = True
        starts = np.where(behind, -history, position)
        return np.maximum.accumulate(starts, axis)


@dataclass(frozen=True)
class Transition:
    """An n-step transition, [batch, ...]: every column at the first row, and the columns `following` n rows later.

    Its sums are those of `functional.n_step.n_step_returns`, the law, in numpy; a test compares them.

    "reward" is the discounted sum, "discount" the product of discounts (0 after a termination). Near an episode's end
    n is smaller and the following observation is the episode's final one. With `reward_clip`, rewards are clipped to ±
    that before they are summed.
    """

    n: int
    discount: float
    following: tuple[str, ...] = ("observation",)
    stack: tuple[tuple[str, int], ...] = ()
    padding: Padding = "repeat"
    reward_clip: float = 0.0

    def __post_init__(self) -> None:
        check_whole("n", self.n, 1, LONGEST_ITEM - 1)
        check_number("discount", self.discount, 0.0, 1.0)
        check_number("reward_clip", self.reward_clip, 0.0)
        _check_stack(self.stack, self.padding)

    @property
    def timed(self) -> bool:
        return False

    @property
    def needs(self) -> Sequence[str]:
        return ["reward", "terminated", *(name for name, _ in self.stack)]

    def gather(self, rows: Rows, layout: Layout) -> Gathered:
        last = rows.length - 1
        taken = last - rows.history  # transitions that are summed
        at_first = rows.addresses(rows.history) if self.stack else rows.start
        at_last = rows.addresses(last)
        before_last = at_first if self.n == 1 else rows.addresses(last - 1)
        data: dict[str, Array] = {}
        windows: dict[str, Window] = {}
        stack = dict(self.stack)
        for name in rows.names:
            if name in ("valid", "terminated"):
                continue
            follows = name.split("/", 1)[0] in self.following
            if name in stack:
                self._stacked(rows, name, stack[name], follows, data, windows)
            elif name == "reward":
                data[name] = self._rewards(rows, taken, at_first)
            else:
                data[name] = rows.take(name, at_first)
                if follows:
                    data[f"next_{name}"] = rows.take(name, at_last)
        discount = np.float32(self.discount) if self.n == 1 else (self.discount**taken).astype(np.float32)
        data["discount"] = np.where(rows.take("terminated", before_last), _ZERO, discount)
        return data, windows

    def _rewards(self, rows: Rows, taken: Array, at_first: Array) -> Array:
        if self.n == 1:
            return self._clipped(rows.take("reward", at_first))
        steps = np.arange(self.n)[:, None]
        rewards = self._clipped(rows.take("reward", rows.addresses(np.minimum(steps, taken - 1) + rows.history)))
        weights = (self.discount**steps).astype(rewards.dtype) * (steps < taken)
        summed: Array = np.einsum("tb...,tb->b...", rewards, weights)
        return summed

    def _clipped(self, rewards: Array) -> Array:
        return rewards.clip(-self.reward_clip, self.reward_clip) if self.reward_clip else rewards

    def _stacked(
        self, rows: Rows, name: str, count: int, follows: bool, data: dict[str, Array], windows: dict[str, Window]
    ) -> None:
        if follows and self.n == 1:  # the two stacks share all frames but one: gather them once
            taken, padded = stack_positions(rows.history + 1, 0, count + 1)
            frames = f"{name}|frames"
            data[frames] = rows.take(name, rows.addresses(taken, 1))
            if self.padding == "zero":
                data[frames][padded] = 0
            windows[name] = Window(frames, 1, 0, count)
            windows[f"next_{name}"] = Window(frames, 1, 1, count + 1)
            return
        for target, position in ((name, rows.history), (f"next_{name}", rows.length - 1)):
            if target == name or follows:
                taken, padded = stack_positions(position, 0, count)
                data[target] = rows.take(name, rows.addresses(taken, 1))
                if self.padding == "zero":
                    data[target][padded] = 0


def _check_stack(stack: tuple[tuple[str, int], ...], padding: str) -> None:
    for name, count in stack:
        check_whole(f"stack of {name!r}", count, 1, _MOST_FRAMES)
    if padding not in ("repeat", "zero"):
        raise ValueError(f"padding={padding!r} is neither 'repeat' nor 'zero'")


VIEWS: dict[str, type[Any]] = {"Whole": Whole, "Transition": Transition}  # that a checkpoint may name


def register_view(kind: type[Any]) -> type[Any]:
    """Let checkpoints hold tables of a view of your own, a dataclass of plain values; works as a decorator.

    A checkpoint names views by their class's name, and only those that are known here are ever made.
    """
    if not is_dataclass(kind):
        raise ValueError(f"the view {kind.__name__} is not a dataclass")
    if VIEWS.setdefault(kind.__name__, kind) is not kind:
        raise ValueError(f"there is another view of the name {kind.__name__}")
    return kind
