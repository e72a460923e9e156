"""A running table: which items there are, in arrays, and the order in which they are sampled and removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shoal.types import Array

from .arrays import as_slice, distinct
from .chunks import Store
from .description import Table
from .errors import BadCheckpoint
from .limiters import Counts, Round
from .numbers import check_whole
from .selectors import Drawn, Ranked
from .statistics import Statistics
from .views import View

# What a table knows of an item, in 32 bytes side by side: one look-up, one cache miss.
ITEM = np.dtype(
    [
        ("start", np.int64),  # address of the first row
        ("key", np.int64),  # number of the insert and slot, so that a slot's next item is told apart; EMPTY: none
        ("priority", np.float64),
        ("length", np.int16),  # rows, the history for frame stacks included
        ("history", np.int16),
        ("times_sampled", np.int32),
    ]
)
EMPTY = 0
_ONE = np.int32(1)  # of the counters' own type: anything else takes `ufunc.at` 25 times as long


@dataclass
class Chosen:
    """Sampled items, copied out of the table so that they may be removed from it."""

    items: Array  # of dtype ITEM
    probabilities: Array
    states: dict[str, Array]


class Watcher(Protocol):
    """Is told of what happens to a table's items, as `extras.Extension` is."""

    def inserted(self, table: str, keys: Array, priorities: Array) -> None: ...
    def sampled(self, table: str, keys: Array) -> None: ...
    def updated(self, table: str, keys: Array, priorities: Array) -> None: ...
    def deleted(self, table: str, keys: Array) -> None: ...


class RunningTable:
    """The items of one table. Not safe for threads by itself: the service holds its lock around every call."""

    def __init__(self, table: Table, generator: np.random.Generator, extensions: Sequence[Watcher] = ()) -> None:
        self.description = table
        self.generator = generator
        slots = table.slots
        self.items = np.zeros(slots, ITEM)
        self._words = self.items.view(np.int64).reshape(slots, -1)  # the same: numpy copies fields one by one
        self.start, self.length, self.key = self.items["start"], self.items["length"], self.items["key"]
        self.times_sampled, self.priority = self.items["times_sampled"], self.items["priority"]
        self._slots = slots
        self.states: dict[str, Array] = {}
        self.columns: list[str] = []  # of a sample
        self.store: Store | None = None
        self.view: View | None = None
        self.limiter = table.limiter.start()
        self.counts = Counts()
        self.statistics = Statistics()
        self._extensions = extensions
        self.deletes = 0
        self.refused = 0  # items that a quota turned away or whose rows were lost
        self.repeated = 0  # items that came again, or from a life of their writer that has ended
        self.stale_updates = 0  # priorities for items that were gone
        self.uses_left = 0  # samples that remain before max_times_sampled removes everything
        times = max(1, table.max_times_sampled)
        self.largest_sample = min(table.capacity * times, self.limiter.largest_sample(table.capacity, times))
        self.bits = max(1, (slots - 1).bit_length())
        self._fresh = 0  # slots from here on were never used
        self._free = np.empty(slots, np.int32)
        self._free_count = 0
        self.sampler: Ranked | Drawn = table.sampler.start(self.key, self.priority)
        same = table.remover == table.sampler
        self.remover: Ranked | Drawn = self.sampler if same else table.remover.start(self.key, self.priority)
        self._selectors = [self.sampler] if same else [self.sampler, self.remover]

    @property
    def size(self) -> int:
        return self.counts.size

    def state(self) -> str:
        """What the limiter says, for a person."""
        return self.limiter.state(self.counts)

    def bound(self) -> tuple[Store, View]:
        """What the items refer to and how they are read; there is at least one item."""
        assert self.store is not None
        assert self.view is not None
        return self.store, self.view

    def item_bytes(self) -> int:
        """Memory of the arrays that describe items, as far as they were used."""
        return self._fresh * (ITEM.itemsize + sum(selector.item_bytes for selector in self._selectors))

    def ages_and_uses(self, most: int) -> tuple[Array, Array]:
        """Number of the insert and times sampled of at most `most` items, evenly spread."""
        part = slice(0, self._fresh, max(1, -(-self._fresh // most)))
        keys, times = self.key[part], self.times_sampled[part]
        there = keys != EMPTY
        return (keys[there] >> self.bits) - 1, times[there]

    def live(self) -> Array:
        """Occupied slots."""
        return np.flatnonzero(self.key[: self._fresh] != EMPTY)

    # Checkpoints

    def saved_arrays(self) -> dict[str, Array]:
        """What a checkpoint keeps, as it is now: copy it before anything changes."""
        arrays = {"items": self.items[: self._fresh], "free": self._free[: self._free_count]}
        arrays |= {name: values[: self._fresh] for name, values in self.states.items()}
        for role, selector in (("sampler", self.sampler), ("remover", self.remover)):
            if (order := selector.saved_order()) is not None:
                arrays[role] = order
        return arrays

    def saved_numbers(self) -> dict[str, Any]:
        return {
            "capacity": self.description.capacity,
            "slots": self.description.slots,
            "inserts": self.counts.inserts,
            "samples": self.counts.samples,
            "deletes": self.deletes,
            "refused": self.refused,
            "repeated": self.repeated,
            "stale_updates": self.stale_updates,
            "random": self.generator.bit_generator.state,
            "round": self.limiter.dump() if isinstance(self.limiter, Round) else None,
        }

    def fresh_copy(self) -> RunningTable:
        """The same table, empty."""
        return RunningTable(self.description, np.random.default_rng(), self._extensions)

    def check_description(self, numbers: dict[str, Any]) -> None:
        """Raise BadCheckpoint unless the table that was saved had this one's size."""
        for what in ("capacity", "slots"):
            if numbers[what] != getattr(self.description, what):
                raise BadCheckpoint(
                    f"table {self.description.name!r} was saved with {what} {numbers[what]!r} and has now "
                    f"{getattr(self.description, what)}; make the table as it was to load it"
                )

    def restore(
        self, numbers: dict[str, Any], arrays: dict[str, Array], store: Store | None, view: View | None
    ) -> None:
        """Fill an empty table with what was saved and checked."""
        self._fresh = len(arrays["items"])
        self._words[: self._fresh] = arrays["items"].view(np.int64).reshape(self._fresh, self._words.shape[1])
        self._free_count = len(arrays["free"])
        self._free[: self._free_count] = arrays["free"]
        self.counts.inserts, self.counts.samples = numbers["inserts"], numbers["samples"]
        self.deletes, self.refused = numbers["deletes"], numbers["refused"]
        self.stale_updates, self.repeated = numbers["stale_updates"], numbers["repeated"]
        self.generator.bit_generator.state = numbers["random"]
        slots = self.live()
        self.counts.size = len(slots)
        if isinstance(self.limiter, Round) and numbers["round"] is not None:
            self.limiter.restore(numbers["round"], self.counts.size)
        limit = self.description.max_times_sampled
        self.uses_left = int((limit - self.times_sampled[slots]).sum()) if limit else 0
        in_order = slots[np.argsort(self.key[slots])]
        for role, selector in (("sampler", self.sampler), ("remover", self.remover)):
            if role == "sampler" or selector is not self.sampler:
                order = arrays[role].astype(np.int64) if role in arrays else in_order
                selector.insert(order, order)
        if store is not None and view is not None:
            states = {name: values for name, values in arrays.items() if name.startswith("state/")}
            self.bind(view, store, states)
            for name, values in states.items():
                self.states[name][: self._fresh] = values
            store.fit(int(self.length[slots].max(initial=1)))
            store.hold(self.start[slots] >> store.shift)

    def bind(self, view: View, store: Store, states: dict[str, Array]) -> None:
        """Fix what the items of this table are like, as the first ones say."""
        if self.view is None:
            self.view, self.store = view, store
            self.columns = [name for name in store.columns if name in (self.description.signature or store.columns)]
            for name, values in states.items():
                self.states[name] = np.zeros((len(self.key), *values.shape[1:]), values.dtype)

    # Inserting

    def room(self, count: int) -> int:
        """How many of `count` newcomers fit in one go."""
        return min(count, self.description.capacity)

    def insert(self, start: Array, length: Array, history: Array, priority: Array, states: dict[str, Array]) -> Array:
        """Add items (at most `room`), removing others first where there is no space; their keys."""
        count = len(start)
        if self.counts.size + count > self._slots:
            self.shrink(self.description.capacity - count)
        slots = self._take_slots(count)
        number = self.counts.inserts + 1  # a key is never 0
        keys = np.arange(number << self.bits, (number + count) << self.bits, 1 << self.bits)
        keys += slots
        place = as_slice(slots)
        items = self.items[place] if isinstance(place, slice) else np.empty(count, ITEM)
        items["start"], items["length"], items["history"] = start, length, history
        items["key"], items["priority"], items["times_sampled"] = keys, priority, 0
        if not isinstance(place, slice):
            self._words[place] = items.view(np.int64).reshape(count, -1)
        for name, values in states.items():
            self.states[name][slots] = values
        for selector in self._selectors:
            selector.insert(slots, place)
        self.counts.size += count
        self.counts.inserts += count
        self.uses_left += count * self.description.max_times_sampled
        if self.store is not None:
            self.store.hold(start >> self.store.shift)
        for extension in self._extensions:
            extension.inserted(self.description.name, keys, priority)
        return keys

    def _take_slots(self, count: int) -> Array:
        used = min(count, self._free_count)
        self._free_count -= used
        slots = self._free[self._free_count : self._free_count + used].astype(np.int64)
        if used < count:
            fresh = np.arange(self._fresh, self._fresh + count - used)
            self._fresh += len(fresh)
            slots = np.concatenate([slots, fresh]) if used else fresh
        return slots

    # Removing

    def shrink(self, size: int) -> int:
        """Let the remover take items until `size` are left; how many those were."""
        gone = 0
        while (wanted := self.counts.size - size) > 0:
            if isinstance(self.remover, Drawn):
                slots = distinct(self.remover.draw(wanted, self.generator)[0])
            else:
                slots = self.remover.first(wanted)
            self.delete(slots, chosen_by=self.remover)
            gone += len(slots)
        return gone

    def delete(self, slots: Array, chosen_by: Ranked | Drawn | None = None) -> None:
        """Remove the items in these slots, each named once; `chosen_by` has just given them all, and no others."""
        place = as_slice(slots)
        items = self.items[place] if isinstance(place, slice) else self.items.take(slots)
        for extension in self._extensions:
            extension.deleted(self.description.name, items["key"].copy())
        if self.store is not None:
            self.store.drop(items["start"] >> self.store.shift)
        for selector in self._selectors:
            selector.remove(slots, place, selector is chosen_by)
        self.key[place] = EMPTY
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)
        self.counts.size -= len(slots)
        self.deletes += len(slots)
        limit = self.description.max_times_sampled
        if limit:
            self.uses_left -= int((limit - items["times_sampled"]).sum())

    # Sampling

    def set_quota(self, items: int) -> None:
        """A round needs so many items; a sample may take all that are there."""
        name, capacity = self.description.name, self.description.capacity
        if not isinstance(self.limiter, Round):
            raise ValueError(f"table {name!r} has no quota that could change")
        self.limiter.items = check_whole(f"items in a round of table {name!r}", items, 1, capacity)
        self.largest_sample = capacity

    def sampleable(self, count: int) -> int:
        """How many of `count` items may be sampled now: what the limiter allows and the items there can give."""
        if self.description.max_times_sampled:
            count = min(count, self.uses_left)
        return self.limiter.sampleable(self.counts, count) if self.counts.size else 0

    def check_sample(self, batch: int, least: int, layout: str) -> None:
        """Raise ValueError for a batch that can never be given."""
        name, capacity = self.description.name, self.description.capacity
        if layout not in ("time", "batch"):
            raise ValueError(f"layout={layout!r} is neither 'time' nor 'batch'")
        check_whole(f"batch of a sample of table {name!r}", batch, 1)
        check_whole(f"minimum of a sample of table {name!r}", least, 1)
        if least > batch:
            raise ValueError(f"a sample of table {name!r} needs 1 <= minimum <= batch, not {least} and {batch}")
        if least > self.largest_sample:
            raise ValueError(
                f"a sample of {least:,} can never come from table {name!r}, which gives at most "
                f"{self.largest_sample:,} at once with capacity={capacity:,} and {self.description.limiter}; "
                "ask for less or enlarge those"
            )

    def sample(self, count: int) -> Chosen:
        """`count` items (at most `sampleable`), as if drawn one by one: one at its limit is not drawn again."""
        pieces = [self._sample(count)]
        while (missing := count - sum(len(piece.items) for piece in pieces)) > 0:
            pieces.append(self._sample(missing))
        self.counts.samples += count
        return pieces[0] if len(pieces) == 1 else _join(pieces)

    def _sample(self, count: int) -> Chosen:
        limit = self.description.max_times_sampled
        if isinstance(self.sampler, Drawn):
            slots, probabilities = self.sampler.draw(count, self.generator)
            if limit:
                allowed = _occurrence(slots) < limit - self.times_sampled[slots]
                slots, probabilities = slots[allowed], probabilities[allowed]
        else:
            slots = self.sampler.first(min(count, self.size) if limit else 1)
            if limit != 1:
                slots = np.repeat(slots, limit - self.times_sampled[slots] if limit else count)[:count]
            probabilities = np.ones(len(slots))
        np.add.at(self.times_sampled, slots, _ONE)
        chosen = Chosen(
            self.items.take(slots), probabilities, {name: values[slots] for name, values in self.states.items()}
        )
        for extension in self._extensions:
            extension.sampled(self.description.name, chosen.items["key"])
        if limit:
            self.uses_left -= len(slots)
            worn = slots if limit == 1 else distinct(slots[chosen.items["times_sampled"] >= limit])
            if len(worn):
                self.delete(worn, chosen_by=self.sampler if limit == 1 else None)
        return chosen

    def mass(self) -> float:
        """What the sampler's probabilities are relative to."""
        return self.sampler.mass() if isinstance(self.sampler, Drawn) else float(self.size)

    @property
    def independent(self) -> bool:
        """Whether items are drawn at random and stay when they are drawn."""
        return isinstance(self.sampler, Drawn) and not self.description.max_times_sampled

    # Priorities

    def find(self, keys: Array) -> Array:
        """Slots of these keys, -1 where the item is gone."""
        slots = keys & ((1 << self.bits) - 1)
        there = (keys > EMPTY) & (self.key[np.minimum(slots, len(self.key) - 1)] == keys)
        return np.where(there, slots, -1)

    def update(self, keys: Array, priorities: Array) -> int:
        """Set priorities; how many of the items were still there."""
        slots = self.find(keys)
        there = slots >= 0
        slots = slots[there]
        priorities = priorities[there]
        self.priority[slots] = priorities
        for selector in self._selectors:
            selector.update(slots)
        self.stale_updates += len(keys) - len(slots)
        for extension in self._extensions:
            extension.updated(self.description.name, keys[there], priorities)
        return len(slots)


def _occurrence(values: Array) -> Array:
    """How often each value came before in the array."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    group = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[group, len(values)])
    occurrence = np.empty(len(values), np.int64)
    occurrence[order] = np.arange(len(values)) - np.repeat(group, counts)
    return occurrence


def _join(pieces: list[Chosen]) -> Chosen:
    return Chosen(
        np.concatenate([piece.items for piece in pieces]),
        np.concatenate([piece.probabilities for piece in pieces]),
        {name: np.concatenate([piece.states[name] for piece in pieces]) for name in pieces[0].states},
    )
