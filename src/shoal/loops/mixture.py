"""Batches of which a part is logged data and the rest what actors do now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from shoal import tree
from shoal.batches import Batch
from shoal.learning import Learning, MakeSource, Source, Taken, Update
from shoal.state import Scope, State

IMPORTANCE = "importance"


class MixedSource(Source):
    """Each batch is one of a table, which actors fill, and one of a dataset, in this order.

    Columns that only one of them has (which weights acted, say) are left out. Where one is drawn by priority, items of
    the other count in full.
    """

    def __init__(self, learning: Learning, *, table: MakeSource, data: MakeSource) -> None:
        self._table, self._data = table(learning), data(learning)

    def wait(self) -> None:
        self._table.wait()
        self._data.wait()

    def take(self) -> Taken:
        table, data = self._table.take(), self._data.take()
        return Taken(joined(table.batch, data.batch), table.transitions + data.transitions, (table, data))

    def learned(self, taken: Taken, update: Update) -> None:
        table, data = taken.items
        own = rows_of(table.batch)
        for source, part, place in ((self._table, table, slice(0, own)), (self._data, data, slice(own, None))):
            priorities = None if update.priorities is None else update.priorities[place]
            source.learned(part, Update(update.metrics, priorities=priorities, applied=update.applied))

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        table, data = taken.items
        return {**self._data.measure(data), **self._table.measure(table)}

    def counts(self) -> Mapping[str, float]:
        return {**self._data.counts(), **self._table.counts()}

    def state_dict(self, scope: Scope = "own") -> State:
        states = {"table": self._table.state_dict(scope), "data": self._data.state_dict(scope)}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, source in (("table", self._table), ("data", self._data)):
            if name in state:
                source.load_state_dict(state[name])


def rows_of(batch: Batch) -> int:
    return len(batch["reward"])


def joined(one: Batch, other: Batch) -> Batch:
    """The columns [B, ...] that both have, one after the other, of the first one's kind."""
    if (IMPORTANCE in one) != (IMPORTANCE in other):
        one, other = (part if IMPORTANCE in part else {**part, IMPORTANCE: _ones(part)} for part in (one, other))
    names = [name for name in one if name in other and name != "state"]
    parts = ({name: batch[name] for name in names} for batch in (one, other))
    return {**tree.map(_join, *parts), "state": {}}


def _ones(batch: Batch) -> Tensor:
    return torch.ones(rows_of(batch), device=batch["reward"].device)


def _join(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other.to(one)])
