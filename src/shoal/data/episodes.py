"""An episode as a value: T + 1 observations, T actions and rewards, and how it ended; and what may be stored of one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import tree
from shoal.errors import UserError
from shoal.types import Array, Arrays, Columns

OBSERVATION, ACTION, REWARD, TERMINATED, VALID, LOG_PROB = (
    "observation",
    "action",
    "reward",
    "terminated",
    "valid",
    "log_prob",
)
FLAGS = (REWARD, TERMINATED, VALID, LOG_PROB)  # columns of one number per row


class BadData(UserError):
    """What is no dataset, or one that cannot be learned from, in one sentence."""


@dataclass(frozen=True, eq=False)
class Episode:
    """What happened from a reset to an end, or to where the log breaks off."""

    observations: Arrays  # "observation", or "observation/…" of nested ones, [T + 1, ...]
    actions: Array  # [T, ...]
    rewards: Array  # [T]
    terminated: bool  # it came to an end: nothing follows
    truncated: bool = False  # it was cut: what would have followed is worth something. Neither: the log breaks off
    log_probs: Array | None = None  # [T], of the actions by the policy that acted, where it is known
    seed: int | None = None  # of the reset, where it is known

    def __len__(self) -> int:
        """Its steps, T."""
        return len(self.rewards)

    def with_seed(self, seed: int | None) -> Episode:
        return replace(self, seed=seed)

    @property
    def total(self) -> float:
        """Its return, not discounted."""
        return math.fsum(np.asarray(self.rewards, np.float64).tolist())


def episode(
    observations: Any,
    actions: Any,
    rewards: Any,
    *,
    terminated: bool,
    truncated: bool = False,
    log_probs: Any = None,
    seed: int | None = None,
) -> Episode:
    """An episode of nested observations, T + 1 of each leaf."""
    flat = {name: np.asarray(leaf) for name, leaf in tree.flatten(observations, OBSERVATION).items()}
    chances = None if log_probs is None else np.asarray(log_probs)
    ends = bool(terminated), bool(truncated)
    return Episode(flat, np.asarray(actions), np.asarray(rewards), *ends, chances, seed)


def columns_of(observation_space: spaces.Space[Any], action_space: spaces.Space[Any], log_probs: bool) -> np.dtype[Any]:
    """One row of a dataset, as a record: larger parts first, so that each is aligned without gaps."""
    leaves = tree.leaf_spaces(observation_space, OBSERVATION) | {ACTION: action_space}
    parts = {name: (np.dtype(leaf.dtype), tuple(leaf.shape or ())) for name, leaf in leaves.items()}
    parts |= {REWARD: (np.dtype(np.float32), ())}
    parts |= {LOG_PROB: (np.dtype(np.float32), ())} if log_probs else {}
    parts |= {TERMINATED: (np.dtype(np.bool_), ()), VALID: (np.dtype(np.bool_), ())}
    return record_of((name, kind, shape) for name, (kind, shape) in parts.items())


def record_of(columns: Iterator[tuple[str, np.dtype[Any], tuple[int, ...]]]) -> np.dtype[Any]:
    """Columns side by side, each row as long as a multiple of 8 bytes."""
    ordered = sorted(columns, key=lambda column: (-column[1].itemsize, column[0]))
    names, formats, offsets, end = [], [], [], 0
    for name, kind, shape in ordered:
        names.append(name)
        formats.append((kind, shape))
        offsets.append(end)
        end += kind.itemsize * math.prod(shape)
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": -(-end // 8) * 8}
    record: np.dtype[Any] = np.dtype(described)
    return record


def to_rows(episode: Episode, record: np.dtype[Any], action_space: spaces.Space[Any], name: str) -> Array:
    """The T + 1 rows of an episode, the last of which holds its final observation; BadData for what none can be."""
    length = len(episode)
    if length < 1:
        raise BadData(f"{name} has no step: leave it out.")
    rows = np.zeros(length + 1, record)
    given: dict[str, Any] = {**episode.observations, ACTION: episode.actions, REWARD: episode.rewards}
    if LOG_PROB in (record.names or ()):
        given[LOG_PROB] = np.full(length, np.nan) if episode.log_probs is None else episode.log_probs
    for column in record.names or ():
        if column in (TERMINATED, VALID):
            continue
        if column not in given:
            raise BadData(f"{name} lacks the column {column!r}, which its space asks for.")
        values, field = np.asarray(given[column]), rows[column]
        count = length + (column not in (ACTION, *FLAGS))
        if values.shape != (count, *field.shape[1:]):
            values = _reshaped(values, (count, *field.shape[1:]), column, name, length)
        _check_kind(values, field.dtype, column, name)
        with np.errstate(over="ignore"):
            field[:count] = values
        stored = field[:count]
        known = np.isfinite(stored) if column != LOG_PROB else ~np.isinf(stored)  # NaN: nobody knows it
        if not known.all():  # as it comes, or as float32
            step = int(np.flatnonzero(~known.reshape(count, -1).all(1))[0])
            raise BadData(f"{name} has a {column} at step {step} that is not finite: mend it or leave the episode out.")
    unknown = [column for column in episode.observations if column not in (record.names or ())]
    if unknown:
        raise BadData(f"{name} has the column {unknown[0]!r}, which its space does not have.")
    _check_actions(rows[ACTION][:length], action_space, name)
    rows[VALID][:length] = True
    rows[TERMINATED][length - 1] = episode.terminated
    return rows


def _reshaped(values: Array, shape: tuple[int, ...], column: str, name: str, length: int) -> Array:
    """Columns of one number may come with an axis of one, and the other way round."""
    if values.ndim and values.dtype != object and len(values) == shape[0] and values.size == math.prod(shape):
        squeezed = [size for size in values.shape[1:] if size != 1] == [size for size in shape[1:] if size != 1]
        if squeezed:
            return values.reshape(shape)
    raise BadData(
        f"{name} has {length:,} steps, and its {column} has the shape {list(values.shape)} where {list(shape)} belongs."
    )


def _check_kind(values: Array, kind: np.dtype[Any], column: str, name: str) -> None:
    whole = kind.kind in "iub"
    if values.dtype.kind not in ("iub" if whole else "iubf"):
        raise BadData(f"{name} has {column}s of the type {values.dtype}, where {kind} belongs.")
    if whole and values.dtype != kind and values.size:
        limits = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if values.min() < limits[0] or values.max() > limits[1]:
            raise BadData(f"{name} has {column}s beyond {kind}: from {values.min()} to {values.max()}.")


def _check_actions(actions: Array, space: spaces.Space[Any], name: str) -> None:
    """Discrete actions must be those of the space; continuous ones may be outside by rounding."""
    match space:
        case spaces.Discrete():
            low, high = np.asarray(0), np.asarray(int(space.n) - 1)
        case spaces.MultiDiscrete():
            low, high = np.zeros_like(space.nvec), space.nvec - 1
        case spaces.Box():
            slack = 1e-5 * np.maximum(1.0, np.where(np.isfinite(space.high), np.abs(space.high), 1.0))
            low, high = space.low - slack, space.high + slack
        case _:
            return
    outside = ((actions < low) | (actions > high)).reshape(len(actions), -1).any(1)
    if outside.any():
        step = int(np.flatnonzero(outside)[0])
        raise BadData(
            f"{name} has the action {np.asarray(actions[step]).tolist()} at step {step}, which is outside of {space}: "
            "give the space that it was taken in, or clip the actions."
        )


def from_rows(rows: Array, terminated: bool, truncated: bool, seed: int | None) -> Episode:
    """The episode that `to_rows` was given."""
    steps = slice(0, len(rows) - 1)
    observations: Columns = {
        name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or () if tree.is_under(name, OBSERVATION)
    }
    chances = None
    if LOG_PROB in (rows.dtype.names or ()):
        found = np.ascontiguousarray(rows[LOG_PROB][steps])
        chances = None if np.isnan(found).all() else found
    actions, rewards = (np.ascontiguousarray(rows[name][steps]) for name in (ACTION, REWARD))
    return Episode(observations, actions, rewards, terminated, truncated, chances, seed)


def nested(observations: Mapping[str, Any], space: spaces.Space[Any]) -> Any:
    """Observations by name, nested as their space."""
    return tree.nest(space, observations, OBSERVATION)
