"""What a dataset's folder says of itself: one JSON file, replaced as a whole, so that it tells of whole episodes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.data.episodes import BadData, columns_of
from shoal.envs.space_records import from_record, to_record

FORMAT = "shoal dataset 1"
MANIFEST, ROWS, EPISODES, LOCK = "manifest.json", "rows", "episodes", "writing"
MOST_BYTES = 1 << 30  # of one row: what claims more is not believed
MOST_MANIFEST = 1 << 26  # bytes

EPISODE = np.dtype(
    [
        ("first", "<i8"),  # its first row
        ("length", "<i8"),  # its steps; it has one row more
        ("total", "<f8"),  # its return
        ("seed", "<i8"),  # of its reset; -1: not known
        ("terminated", "?"),
        ("truncated", "?"),
        ("padding", "V6"),
    ]
)


@dataclass(frozen=True)
class Origin:
    """Where a dataset comes from, for a person and for an import that goes on."""

    text: str = ""  # for a person
    source: str = ""  # what was imported, and what tells whether it is still the same
    taken: int = 0  # episodes of it that were looked at
    complete: bool = True


@dataclass(frozen=True)
class Manifest:
    """All that is known of a dataset beside its rows."""

    observation_space: spaces.Space[Any]  # of what is stored: single frames, floating point as float32
    action_space: spaces.Space[Any]  # counted from 0
    native_action_space: spaces.Space[Any]  # as the environment has it
    log_probs: bool = False
    env: str = ""  # a name for a person, and what --env may be given; nothing is ever made of it
    env_options: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    rows: int = 0
    episodes: int = 0
    checksums: Mapping[str, int] = field(default_factory=lambda: {ROWS: 0, EPISODES: 0})  # CRC-32 of the two files
    moments: Mapping[str, Any] = field(default_factory=dict)  # by column: count, sum, squares, least, most

    @property
    def record(self) -> np.dtype[Any]:
        """One row."""
        return columns_of(self.observation_space, self.action_space, self.log_probs)

    @property
    def steps(self) -> int:
        return self.rows - self.episodes


def write(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of a folder as a whole."""
    record = {
        "format": FORMAT,
        "observation_space": to_record(manifest.observation_space),
        "action_space": to_record(manifest.action_space),
        "native_action_space": to_record(manifest.native_action_space),
        "log_probs": manifest.log_probs,
        "env": manifest.env,
        "env_options": dict(manifest.env_options),
        "origin": vars(manifest.origin),
        "rows": manifest.rows,
        "episodes": manifest.episodes,
        "checksums": dict(manifest.checksums),
        "moments": dict(manifest.moments),
    }
    temporary = path / f"{MANIFEST}.new"
    temporary.unlink(missing_ok=True)  # of who was killed, or a link
    with open(temporary, "x", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / MANIFEST)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_dataset(path: Path) -> bool:
    return (path / MANIFEST).exists()


def read(path: Path) -> Manifest:
    """The manifest of a folder, or BadData."""
    file = path / MANIFEST
    try:
        if not file.is_file() or file.stat().st_size > MOST_MANIFEST:  # a pipe would be waited for
            raise BadData(f"{path} is no dataset: it has no {MANIFEST}.")
        record = json.loads(file.read_bytes())
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise BadData(f"{file} is damaged: it is no JSON.") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        told = record.get("format") if isinstance(record, dict) else None
        raise BadData(f"{file} is not of the format {FORMAT!r} but {told!r}: another version of Shoal has written it.")
    try:
        return _from_record(record)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"{file} is damaged: {' '.join(str(error).split()) or type(error).__name__}.") from None


def _from_record(record: Mapping[str, Any]) -> Manifest:
    observation, action, native = (
        space_of(record[name]) for name in ("observation_space", "action_space", "native_action_space")
    )
    origin = record["origin"]
    manifest = Manifest(
        observation,
        action,
        native,
        log_probs=bool(record["log_probs"]),
        env=str(record["env"]),
        env_options=dict(record["env_options"]),
        origin=Origin(
            str(origin["text"]), str(origin["source"]), _whole(origin["taken"], "taken"), bool(origin["complete"])
        ),
        rows=_whole(record["rows"], "rows"),
        episodes=_whole(record["episodes"], "episodes"),
        checksums={name: _whole(record["checksums"][name], "a checksum") for name in (ROWS, EPISODES)},
        moments={str(name): _moments(values) for name, values in record["moments"].items()},
    )
    if not 0 < manifest.record.itemsize <= MOST_BYTES:
        raise ValueError(f"a row of {manifest.record.itemsize:,} bytes")
    if manifest.rows < 2 * manifest.episodes:
        raise ValueError(f"{manifest.rows:,} rows cannot be {manifest.episodes:,} episodes")
    return manifest


def space_of(record: Any) -> spaces.Space[Any]:
    """A space, unless it would not even fit into memory."""
    parts = [record]
    while parts:
        match parts.pop():
            case {"parts": dict(below)}:
                parts += below.values()
            case {"parts": list(below)}:
                parts += below
            case {"shape": list(shape), "dtype": kind}:
                if (
                    np.dtype(kind).kind not in "biuf"
                    or math.prod(_whole(size, "a shape") for size in shape) > MOST_BYTES
                ):
                    raise ValueError(f"no row can hold {shape} of {kind}")
    return from_record(record)


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{name} is {value!r}")
    return value


def _moments(values: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"count": _whole(values["count"], "count")}
    for name in ("sum", "squares", "least", "most"):
        numbers = values[name]
        if not isinstance(numbers, list) or not all(type(x) in (int, float) and math.isfinite(x) for x in numbers):
            raise ValueError(f"{name} is no list of numbers")
        known[name] = numbers
    return known
