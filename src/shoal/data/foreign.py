"""What is to be imported, as all formats give it: spaces as far as they are known, and episodes one after another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import tree
from shoal.data.episodes import OBSERVATION, BadData, Episode
from shoal.types import Array

MOST_CHOICES = 1 << 20  # that are believed without an environment that says so


@dataclass(frozen=True)
class SpacePair:
    """Of what was observed and what was done, as an environment has them."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]


@dataclass(frozen=True)
class Foreign:
    """A source of episodes."""

    name: str  # as it was given
    fingerprint: str  # another one when it has changed
    episodes: Callable[[], Iterator[Episode]]  # from the first on; discrete actions as the environment counts them
    spaces: SpacePair | None = None  # None: to be found out from the data
    env: str = ""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None  # episodes, where that is known
    notes: list[str] = field(default_factory=list)  # what the user should know, filled while episodes are read
    action_range: Callable[[], tuple[Array, Array]] | None = None  # least and most of all actions, where that is cheap


def fingerprint_of(*files: Path) -> str:
    """Of names, sizes and times: cheap, and another one when something was written."""
    told = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def check_regular(*files: Path) -> None:
    """BadData for a pipe, which would be waited for, and for what never ends; what is not there is found later."""
    for file in files:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise BadData(f"{file} is no regular file: data are read from files.")


def flags(values: Array, name: str, column: str) -> Array:
    """A column that says where episodes end: bool [N]."""
    flat = values.reshape(-1)
    if len(flat) != len(values) or flat.dtype.kind not in "biuf" or not np.isin(flat, (0, 1)).all():
        raise BadData(f"{name}: {column!r} must be true or false, or 1 or 0, once for each step.")
    return flat.astype(bool)


def infer_spaces(found: Foreign, first: Episode) -> SpacePair:
    """Spaces for data that say nothing of theirs: numbers without bounds, bytes as images, and actions from their
    range; what was assumed is noted."""
    leaves = {name: _observation_space(name, array) for name, array in first.observations.items()}
    observation = leaves.get(OBSERVATION) or _nested(tree.unflatten(leaves, OBSERVATION))
    if first.actions.dtype.kind not in "iubf":
        raise BadData(f"{found.name} has actions of the type {first.actions.dtype}: numbers are needed.")
    low, high = _range(first.actions) if found.action_range is None else found.action_range()
    action: spaces.Space[Any]
    if first.actions.dtype.kind in "iub":
        n = int(high.max()) + 1
        if n > MOST_CHOICES:
            raise BadData(f"{found.name} has the action {n - 1:,}: give --env, if there are so many.")
        if first.actions.reshape(len(first.actions), -1).shape[1] > 1:
            action = spaces.MultiDiscrete(high.reshape(-1).astype(np.int64) + 1)
        else:
            action = spaces.Discrete(max(2, n))
        found.notes.append(f"actions are taken to be {action}, as the largest one tells: give --env to say it")
    else:
        shape = first.actions.shape[1:] or (1,)
        unit = bool((low >= -1.0).all() and (high <= 1.0).all())
        lows, highs = (-np.ones(shape), np.ones(shape)) if unit else (low.reshape(shape), high.reshape(shape))
        if not unit and (lows >= highs).any():
            raise BadData(f"{found.name} has actions that are always the same: give --env, whose bounds are known.")
        action = spaces.Box(lows.astype(np.float32), highs.astype(np.float32), dtype=np.float32)
        said = "from -1 to 1" if unit else "as far as the data's go"
        found.notes.append(f"the bounds of actions are taken to be {said}: give --env to have the environment's")
    return SpacePair(observation, action)


def _range(actions: Array) -> tuple[Array, Array]:
    return actions.min(0), actions.max(0)


def _observation_space(name: str, array: Array) -> spaces.Space[Any]:
    shape = array.shape[1:]
    if array.dtype == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    if array.dtype.kind not in "iubf":
        raise BadData(f"{name} is of the type {array.dtype}: numbers are needed.")
    return spaces.Box(-np.inf, np.inf, shape or (1,), np.float32)


def _nested(parts: Any) -> spaces.Space[Any]:
    if isinstance(parts, Mapping):
        return spaces.Dict({key: _nested(part) for key, part in parts.items()})
    if isinstance(parts, tuple):
        return spaces.Tuple([_nested(part) for part in parts])
    space: spaces.Space[Any] = parts
    return space


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Names of their parts, and shapes."""
    return ", ".join(f"{key.removeprefix(OBSERVATION) or 'the shape'} {list(shape)}" for key, shape in shapes.items())


def cut_steps(
    name: str,
    observations: Mapping[str, Array],
    following: Mapping[str, Array] | None,
    actions: Array,
    rewards: Array,
    terminated: bool,
    truncated: bool,
    log_probs: Array | None,
) -> Episode | None:
    """An episode of rows that each have an observation, and perhaps the one that follows; where the final one is not
    known, the last step of an episode that was cut serves as it, and None is left of an episode of one step."""
    if following is not None:
        shapes = [{key: array.shape[1:] for key, array in part.items()} for part in (observations, following)]
        if shapes[0] != shapes[1]:
            raise BadData(f"{name} has observations of {_shown(shapes[0])}, and following ones of {_shown(shapes[1])}.")
        whole = {key: np.concatenate([array, following[key][-1:]]) for key, array in observations.items()}
        return Episode(whole, actions, rewards, terminated, truncated, log_probs)
    if terminated:  # what follows is worth nothing, whatever it looks like
        whole = {key: np.concatenate([array, array[-1:]]) for key, array in observations.items()}
        return Episode(whole, actions, rewards, True, truncated, log_probs)
    if len(rewards) < 2:
        return None
    chances = None if log_probs is None else log_probs[:-1]
    return Episode(dict(observations), actions[:-1], rewards[:-1], False, truncated, chances)
