"""Which rows become items: time slices, n-step transitions, sequences, or a pattern of your own.

A pattern sees each block of rows as it is appended and says which items it completes. Rows follow the stream format:
a row with valid=False ends an episode and holds its final observation. Nothing but a rollout crosses an episode's
end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .frames import Padding
from .messages import Array, Spans
from .views import View, Whole


@dataclass(frozen=True, eq=False)
class Appended:
    """A block as patterns see it."""

    first_row: int  # number of its first row in the writer's streams
    valid: Array  # bool [T, B]
    position: Array  # int [T, B]: the row's place in its episode, 0 for the first observation
    position_of: Callable[[Array, Array], Array]  # the same for (environments, row numbers) up to `rows` back


class Pattern(Protocol):
    @property
    def rows(self) -> int: ...  # the longest item, with the history that frame stacks need
    @property
    def view(self) -> View: ...
    def spans(self, block: Appended) -> Spans: ...  # the items that these rows complete, in order of completion


@dataclass(frozen=True)
class _Rollout:
    length: int
    view: Whole

    @property
    def rows(self) -> int:
        return self.length + 1 + _history(self.view.stack)

    def spans(self, block: Appended) -> Spans:
        count, environments = block.valid.shape
        # an item ends at every row whose number is a multiple of the length, except the very first
        ends = np.arange(-(-max(block.first_row, 1) // self.length) * self.length, block.first_row + count, self.length)
        starts = np.repeat(ends - self.length, environments)
        environment = np.tile(np.arange(environments), len(ends))
        most = _history(self.view.stack)
        history = np.minimum(block.position_of(environment, starts), most) if most else np.zeros_like(starts)
        return Spans(environment, starts - history, self.length + 1 + history, history)


def rollout(length: int, *, stack: Mapping[str, int] | None = None, padding: Padding = "repeat") -> Pattern:
    """Time slices of `length` transitions and one more observation, end to end, across episodes.

    The row after an episode's end is in the slice with valid=False; the learner masks it. `stack` gives the columns
    that become frame stacks, and of how many frames.
    """
    _at_least(1, length=length)
    return _Rollout(length, Whole(length + 1, stack=_stacks(stack), padding=padding))


def _stacks(stack: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    stacks = tuple(sorted((stack or {}).items()))
    _at_least(1, **{f"stack of {name}": count for name, count in stacks})
    return stacks


def _history(stack: tuple[tuple[str, int], ...]) -> int:
    return max((count for _, count in stack), default=1) - 1


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value} must be {least} or more")
