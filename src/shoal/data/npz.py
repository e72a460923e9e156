"""Data in an .npz file of D4RL's layout: steps end to end, with flags where episodes end.

`observations`, `actions`, `rewards` [N, ...] and `terminals` [N]; where there are, `timeouts`, `next_observations` and
`log_probs` (or D4RL's `infos/action_log_probs`). Nested observations are `observations/KEY`. The file is read as a
whole, array by array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal import tree
from shoal.data.dataset import Dataset
from shoal.data.episodes import OBSERVATION, BadData, Episode
from shoal.data.foreign import Foreign, SpacePair, check_regular, cut_steps, fingerprint_of, flags
from shoal.data.manifest import space_of
from shoal.envs.space_records import to_record
from shoal.types import Array, Columns

SPACES = "shoal_spaces"  # JSON as bytes, in files that were exported from here
_LOG_PROBS = ("log_probs", "infos/action_log_probs")


def read(path: Path) -> Foreign:
    check_regular(path)
    try:
        file = np.load(path, allow_pickle=False)
        names = set(file.files)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}.") from None
    except Exception:  # whatever zipfile and numpy raise for what is none
        raise BadData(
            f"{path} is no .npz file, or is cut short, or holds pickled objects, which are never read."
        ) from None
    missing = [name for name in ("actions", "rewards", "terminals") if name not in names]
    if not any(tree.is_under(name, "observations") for name in names):
        missing.insert(0, "observations")
    if missing:
        file.close()
        raise BadData(
            f"{path} lacks {missing[0]!r}: of D4RL's layout are observations, actions, rewards, terminals, and perhaps "
            "timeouts and next_observations."
        )
    notes: list[str] = []
    reader = _Reader(path, file, notes)
    return Foreign(
        str(path),
        fingerprint_of(path),
        reader.episodes,
        spaces=reader.spaces(),
        notes=notes,
        action_range=reader.action_range,
    )


class _Reader:
    def __init__(self, path: Path, file: Any, notes: list[str]) -> None:
        self._path, self._file, self._notes = path, file, notes

    def _array(self, name: str) -> Array:
        try:
            array: Array = np.asarray(self._file[name])
            if array.ndim < 1 or array.dtype.kind not in "biuf":
                raise ValueError(name)
            return array
        except MemoryError:
            raise BadData(f"{self._path}: {name!r} says that it is larger than the memory that there is.") from None
        except Exception:  # whatever zipfile, its compressions and numpy raise for what is damaged
            raise BadData(f"{self._path} is damaged: {name!r} cannot be read, or holds pickled objects.") from None

    def spaces(self) -> SpacePair | None:
        if SPACES not in self._file.files:
            return None
        try:
            record = json.loads(self._array(SPACES).tobytes())
            return SpacePair(space_of(record["observation"]), space_of(record["action"]))
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise BadData(f"{self._path} is damaged: its spaces cannot be read.") from None

    def action_range(self) -> tuple[Array, Array]:
        actions = self._array("actions")
        return actions.min(0), actions.max(0)

    def _observations(self, stem: str) -> Columns:
        found = [name for name in self._file.files if tree.is_under(name, stem)]
        return {OBSERVATION + name.removeprefix(stem): self._array(name) for name in found}

    def episodes(self) -> Iterator[Episode]:
        path, names = self._path, self._file.files
        columns: Columns = {name: self._array(name) for name in ("actions", "rewards", "terminals")}
        columns["timeouts"] = (
            self._array("timeouts") if "timeouts" in names else np.zeros(len(columns["rewards"]), bool)
        )
        observations, following = self._observations("observations"), self._observations("next_observations") or None
        chances = next((self._array(name) for name in _LOG_PROBS if name in names), None)
        count = len(columns["rewards"])
        others = {f"next_{name}": array for name, array in (following or {}).items()}
        others |= {} if chances is None else {"log_probs": chances}
        for name, array in {**columns, **observations, **others}.items():
            if len(array) != count:
                raise BadData(f"{path} has {count:,} rewards and {len(array):,} of {name!r}: all must be as many.")
        if not count:
            raise BadData(f"{path} has no step: there is nothing to learn from.")
        ended = [flags(columns[name], str(path), name) for name in ("terminals", "timeouts")]
        ends = np.flatnonzero(ended[0] | ended[1])
        if not len(ends):
            raise BadData(
                f"{path} has no end: neither terminals nor timeouts are ever true, so nobody can tell one episode from "
                "the next; mark the last step of each in timeouts."
            )
        begin, shortened = 0, 0
        for end in (*ends.tolist(), count - 1):
            if begin > end:
                continue
            part = slice(begin, end + 1)
            terminated, truncated = bool(ended[0][end]), bool(ended[1][end])
            made = cut_steps(
                str(path),
                {name: array[part] for name, array in observations.items()},
                None if following is None else {name: array[part] for name, array in following.items()},
                columns["actions"][part],
                columns["rewards"][part].reshape(-1),
                terminated,
                truncated and not terminated,
                None if chances is None else chances[part].reshape(-1),
            )
            begin = end + 1
            shortened += following is None and not terminated
            if made is not None:
                yield made
        if shortened:
            self._notes.append(
                f"there are no next_observations: of {shortened:,} episodes that were cut the last step served as the "
                "final observation"
            )


def write(data: Dataset, path: Path) -> None:
    """Everything in one file, which must fit into memory; complete or absent."""
    rows = data.rows
    valid = rows["valid"]
    steps = np.flatnonzero(valid)
    ends = np.zeros(len(rows), bool)
    last = data.index["first"] + data.index["length"] - 1
    ends[last] = ~data.index["terminated"]  # also of those that break off, which would run into the next
    ends[last[-1]] = data.index["truncated"][-1]  # there is no next
    record = {"observation": to_record(data.observation_space), "action": to_record(data.manifest.native_action_space)}
    columns: dict[str, Any] = {
        "actions": rows["action"][steps] + native_start(data),
        "rewards": rows["reward"][steps],
        "terminals": rows["terminated"][steps],
        "timeouts": ends[steps],
        SPACES: np.frombuffer(json.dumps(record).encode(), np.uint8),
    }
    for name in data.record.names or ():
        if tree.is_under(name, OBSERVATION):
            columns["observations" + name.removeprefix(OBSERVATION)] = rows[name][steps]
            columns["next_observations" + name.removeprefix(OBSERVATION)] = rows[name][steps + 1]
    if data.manifest.log_probs:
        columns["log_probs"] = rows["log_prob"][steps]
    temporary = path.with_name(path.name + ".new")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **columns)
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadData(f"{path} cannot be written: {error.strerror or error}.") from None


def native_start(data: Dataset) -> Any:
    """What the environment's discrete actions are counted from."""
    start = getattr(data.manifest.native_action_space, "start", 0)
    return np.asarray(start) if np.any(start) else np.zeros((), data.record["action"].base.type)
