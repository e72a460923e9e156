"""Data that a function of the user's yields: `module:function`, called without arguments, gives episodes."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.data.episodes import BadData, Episode, episode
from shoal.data.foreign import Foreign, SpacePair
from shoal.factories import load_factory

KEYS = {"observations", "actions", "rewards", "terminated", "truncated", "log_probs", "seed"}


def is_function(name: str) -> bool:
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def read(name: str) -> Foreign:
    """Importing and calling it runs the user's code: it is the user who has named it, now."""
    function = load_factory(name, "dataset")
    pair = None
    found = [getattr(function, part, None) for part in ("observation_space", "action_space")]
    if all(part is not None for part in found):
        pair = SpacePair(*found)  # type: ignore[arg-type]
    return Foreign(name, _fingerprint(name, function), partial(_episodes, name, function), spaces=pair)


def _fingerprint(name: str, function: Callable[..., Any]) -> str:
    try:
        file = Path(inspect.getsourcefile(function) or "")
        told = f"{name} {file} {file.stat().st_mtime_ns}"
    except (OSError, TypeError):
        told = name
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _episodes(name: str, function: Callable[..., Any]) -> Iterator[Episode]:
    number = 0
    try:
        for given in function():
            yield _episode(name, number, given)
            number += 1
    except BadData:
        raise
    except Exception as error:
        raise BadData(
            f"{name} raised {type(error).__name__} at episode {number}: {' '.join(str(error).split())}."
        ) from error


def _episode(name: str, number: int, given: Any) -> Episode:
    if isinstance(given, Episode):
        return given
    wanted = "yield dicts of observations (T + 1 of them), actions, rewards, terminated, truncated"
    if not isinstance(given, Mapping):
        raise BadData(f"{name} yielded {type(given).__name__} as episode {number}: {wanted}.")
    missing = [key for key in ("observations", "actions", "rewards", "terminated") if key not in given]
    strange = [key for key in given if key not in KEYS]
    if missing or strange:
        what = f"lacks {missing[0]!r}" if missing else f"has {strange[0]!r}, which is not known"
        raise BadData(f"{name}: episode {number} {what}; {wanted}.")
    return episode(**given)
