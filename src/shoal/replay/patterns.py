"""Which rows become items: time slices, n-step transitions, sequences, or a pattern of your own.

A pattern sees each block of rows as it is appended and says which items it completes. Rows follow the stream format:
a row with valid=False ends an episode and holds its final observation. Nothing but a rollout crosses an episode's
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from shoal.types import Array

from .frames import Padding
from .messages import Spans
from .numbers import LONGEST_ITEM, check_whole
from .views import Transition, View, Whole

EpisodeEnd = Literal["pad", "shift", "drop"]
Stacks = tuple[tuple[str, int], ...]  # columns that become frame stacks, and of how many frames


class Appended:
    """A block as patterns see it."""

    def __init__(
        self, first_row: int, valid: Array, next_position: Array, past: Callable[[Array, Array], Array] | None = None
    ) -> None:
        self.first_row = first_row  # number of its first row in the writer's streams
        self.valid = valid  # bool [T, B]
        self.ends = not np.logical_and.reduce(valid, None)  # whether an episode ends in it
        self.begin = next_position  # int [B]: the place of its first rows in their episodes
        self._past = past

    @cached_property
    def position(self) -> Array:
        """int [T, B]: each row's place in its episode, 0 for the first observation."""
        steps = np.arange(len(self.valid))[:, None]
        return steps - 1 - self._last_end[:-1] if self.ends else self.begin + steps

    @property
    def next_position(self) -> Array:
        """int [B]: the same for the rows to come."""
        count = len(self.valid)
        following: Array = count - 1 - self._last_end[-1] if self.ends else self.begin + count
        return following

    @cached_property
    def _last_end(self) -> Array:
        """int [T + 1, B]: the newest row before each that ended an episode, counted from the block's first."""
        last_end = np.empty((len(self.valid) + 1, self.valid.shape[1]), np.int64)
        last_end[0] = -1 - self.begin
        last_end[1:] = np.where(self.valid, np.iinfo(np.int64).min, np.arange(len(self.valid))[:, None])
        np.maximum.accumulate(last_end, axis=0, out=last_end)
        return last_end

    def position_of(self, environment: Array, row: Array) -> Array:
        """The place in their episodes of rows up to a pattern's `rows` back; for patterns with `looks_back` True."""
        if self._past is None:
            raise ValueError("a pattern that asks for the positions of past rows says so with looks_back = True")
        return self._past(environment, row)


class Pattern(Protocol):
    @property
    def rows(self) -> int: ...  # the longest item, with the history that frame stacks need
    @property
    def view(self) -> View: ...
    def spans(self, block: Appended) -> Spans: ...  # the items that these rows complete, in order of completion


@dataclass(frozen=True)
class Viewed:
    """The items of a pattern, read in another way."""

    pattern: Pattern
    view: View

    @property
    def rows(self) -> int:
        return self.pattern.rows

    @property
    def looks_back(self) -> bool:
        return bool(getattr(self.pattern, "looks_back", False))

    def spans(self, block: Appended) -> Spans:
        return self.pattern.spans(block)


@dataclass(frozen=True)
class _Rollout:
    length: int
    view: Whole

    @property
    def rows(self) -> int:
        return self.length + 1 + _history(self.view.stack)

    @property
    def looks_back(self) -> bool:
        return bool(self.view.stack)

    def spans(self, block: Appended) -> Spans:
        count, environments = block.valid.shape
        # an item ends at every row whose number is a multiple of the length, except the very first
        first = -(-max(block.first_row, 1) // self.length) * self.length
        ends = max(0, -(-(block.first_row + count - first) // self.length))
        index, environment, length, history = _all_rows(ends, environments, self.length + 1, 0)
        starts = index * self.length + (first - self.length)
        if not self.view.stack:
            return Spans(environment, starts, length, history)
        history = np.minimum(block.position_of(environment, starts), _history(self.view.stack))
        return Spans(environment, starts - history, self.length + 1 + history, history)


def rollout(length: int, *, stack: Mapping[str, int] | None = None, padding: Padding = "repeat") -> Pattern:
    """Time slices of `length` transitions and one more observation, end to end, across episodes.

    The row after an episode's end is in the slice with valid=False; the learner masks it. `stack` gives the columns
    that become frame stacks, and of how many frames.
    """
    _at_least(1, length=length)
    return _Rollout(length, Whole(length + 1, stack=_stacks(stack), padding=padding, bootstrap=True))


@dataclass(frozen=True)
class _NStep:
    n: int
    view: Transition

    @property
    def rows(self) -> int:
        return self.n + 1 + _history(self.view.stack)

    def spans(self, block: Appended) -> Spans:
        # a row completes the item that begins n rows before it in the same episode
        before = self.n + _history(self.view.stack)
        if not block.ends and np.minimum.reduce(block.begin) >= before:  # as most blocks are: all of them, and alike
            step, environment, length, history = _all_rows(*block.valid.shape, before + 1, before - self.n)
            return Spans(environment, step + (block.first_row - before), length, history)
        step, environment = np.nonzero(block.position >= self.n)
        taken = np.full(len(step), self.n)
        if block.ends:  # an episode's last row completes the shorter items too
            end, whose = np.nonzero(~block.valid)
            most = np.minimum(block.position[end, whose], self.n - 1)
            step = np.concatenate([step, np.repeat(end, most)])
            environment = np.concatenate([environment, np.repeat(whose, most)])
            taken = np.concatenate([taken, np.repeat(np.cumsum(most), most) - np.arange(most.sum())])
        return _ending_at(block, step, environment, taken, self.view.stack)


def n_step(
    n: int,
    discount: float,
    *,
    following: Iterable[str] = ("observation",),
    stack: Mapping[str, int] | None = None,
    padding: Padding = "repeat",
    reward_clip: float = 0.0,
) -> Pattern:
    """Every transition with its n-step return: "observation", "action", … of its row, "reward" the discounted sum of n
    rewards, "discount" what to multiply the value of "next_observation", n rows later, with.

    Where the episode ends earlier, n is smaller and the next observation is the final one. `following` names the
    columns (with all below "name/") that are wanted n rows later too. Rewards are summed as they are stored, or
    clipped to ± `reward_clip`.
    """
    _at_least(1, n=n)
    return _NStep(n, Transition(n, discount, tuple(following), _stacks(stack), padding, reward_clip))


@dataclass(frozen=True)
class _Sequence:
    period: int
    burn_in: int
    end: EpisodeEnd
    view: Whole

    @property
    def rows(self) -> int:
        return self.view.rows + _history(self.view.stack)

    def spans(self, block: Appended) -> Spans:
        last = self.view.rows - 1
        begin = block.position - last  # where in the episode the item begins that this row completes
        step, environment = np.nonzero((begin >= 0) & (begin % self.period == 0))
        taken = np.full(len(step), last)
        if self.end != "drop" and block.ends:
            end, whose = np.nonzero(~block.valid)
            final = block.position[end, whose]
            begin_full = final - last
            partial = np.where(begin_full >= 0, (begin_full // self.period + 1) * self.period, 0)
            whole = (begin_full >= 0) & (begin_full % self.period == 0)
            uncovered = ~whole & ((partial + self.burn_in < final) | (partial == 0))
            if self.end == "shift":
                partial = np.maximum(begin_full, 0)
            step = np.concatenate([step, end[uncovered]])
            environment = np.concatenate([environment, whose[uncovered]])
            taken = np.concatenate([taken, (final - partial)[uncovered]])
        return _ending_at(block, step, environment, taken, self.view.stack)


def sequence(
    length: int,
    *,
    period: int | None = None,
    burn_in: int = 0,
    end: EpisodeEnd = "pad",
    stack: Mapping[str, int] | None = None,
    padding: Padding = "repeat",
) -> Pattern:
    """Sequences of `burn_in` + `length` transitions and one more observation, within one episode, every `period` rows.

    What is left at an episode's end, when it is not covered yet: "pad" keeps it as a shorter item, sampled with zeros
    behind it and the column "mask" False there; "shift" begins it earlier, so that it is whole (and pads only episodes
    shorter than an item); "drop" leaves it out. An item has at least one transition after its burn-in, or is a whole
    episode: where an episode begins the recurrent state is known, and nothing has to be burnt in.
    """
    period = length if period is None else period
    _at_least(1, length=length, period=period)
    _at_least(0, burn_in=burn_in)
    if period > length:
        raise ValueError(
            f"period={period} would leave gaps between sequences of length={length}; it may be {length} at most"
        )
    if end not in ("pad", "shift", "drop"):
        raise ValueError(f"end={end!r} is none of 'pad', 'shift' and 'drop'")
    view = Whole(burn_in + length + 1, masked=end != "drop", stack=_stacks(stack), padding=padding, bootstrap=True)
    return _Sequence(period, burn_in, end, view)


@dataclass(frozen=True)
class _WithHistory:
    """The items of any pattern, with the rows before them that frame stacks need."""

    pattern: Pattern
    view: View
    history: int
    looks_back = True

    @property
    def rows(self) -> int:
        return self.pattern.rows + self.history

    def spans(self, block: Appended) -> Spans:
        found = self.pattern.spans(block)
        history = np.minimum(block.position_of(found.environment, found.start), self.history)
        return Spans(found.environment, found.start - history, found.length + history, history)


def stacked(pattern: Pattern, stack: Mapping[str, int], padding: Padding = "repeat") -> Pattern:
    """A pattern whose items have frame stacks of these columns; one that has stacks already stays as it is."""
    view: Any = pattern.view
    if not stack or getattr(view, "stack", None):
        return pattern
    if not isinstance(view, Whole | Transition):
        raise ValueError(f"the view {type(view).__name__} does not say how it stacks frames: let it have a `stack`")
    view = replace(view, stack=_stacks(stack), padding=padding)
    if isinstance(pattern, _Rollout | _NStep | _Sequence):
        return replace(pattern, view=view)
    return _WithHistory(pattern, view, _history(view.stack))


def _ending_at(block: Appended, step: Array, environment: Array, taken: Array, stack: Stacks) -> Spans:
    """Items of `taken` transitions that end with rows `step` of a block, in order of time."""
    if block.ends:  # shorter items were added behind the others
        order = np.argsort(step, kind="stable")
        step, environment, taken = step[order], environment[order], taken[order]
    start = step - taken
    start += block.first_row
    if not stack:
        return Spans(environment, start, taken + 1, np.zeros(len(step), np.int64))
    before = block.position[step, environment] - taken
    history = np.minimum(before, _history(stack))
    return Spans(environment, start - history, taken + 1 + history, history)


@lru_cache(maxsize=64)
def _all_rows(count: int, environments: int, length: int, history: int) -> tuple[Array, Array, Array, Array]:
    """Step and environment of every row of a block in order of time, and as often the same length and history."""
    step = np.repeat(np.arange(count), environments)
    environment = np.tile(np.arange(environments), count)
    arrays = step, environment, np.full_like(step, length), np.full_like(step, history)
    for array in arrays:
        array.flags.writeable = False  # shared by all callers
    return arrays


def _stacks(stack: Mapping[str, int] | None) -> Stacks:
    stacks = tuple(sorted((stack or {}).items()))
    _at_least(1, **{f"stack of {name}": count for name, count in stacks})
    return stacks


@lru_cache(maxsize=64)
def _history(stack: Stacks) -> int:
    return max((count for _, count in stack), default=1) - 1


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        check_whole(name, value, least, LONGEST_ITEM - 1)
