"""Data in Parquet files: a row is a step, and the steps of an episode follow each other.

| column | |
|---|---|
| `episode` | a number or a name, another one for each episode |
| `observation`, or `observation/KEY` | a number, or a list of numbers of one length |
| `action` | a number, or a list |
| `reward` | a number |
| `terminated`, `truncated` | where the episode came to an end, or was cut; `truncated` may be absent |
| `next_observation`, or `next_observation/KEY` | may be absent: the last step of an episode that was cut serves as it |
| `log_prob` | may be absent |

RLlib's names (`eps_id`, `obs`, `actions`, `rewards`, `new_obs`, `terminateds`, `truncateds`, `action_logp`) mean the
same. Files are read in the order of their names.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal import tree
from shoal.data.dataset import Dataset
from shoal.data.episodes import OBSERVATION, BadData, Episode
from shoal.data.foreign import Foreign, SpacePair, check_regular, cut_steps, fingerprint_of, flags
from shoal.data.manifest import space_of
from shoal.data.npz import native_start
from shoal.envs.space_records import to_record
from shoal.types import Array, Columns

METADATA = b"shoal"  # of a file's schema, in files that were exported from here: spaces and shapes
ALIASES = {
    "eps_id": "episode",
    "obs": "observation",
    "actions": "action",
    "rewards": "reward",
    "new_obs": "next_observation",
    "terminateds": "terminated",
    "truncateds": "truncated",
    "action_logp": "log_prob",
}
BATCH = 1 << 14  # rows that are read together
WRITTEN_AT_ONCE = 1 << 17  # rows of a file


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise BadData("Parquet files need pyarrow: pip install 'shoal[parquet]'.") from None
    return pyarrow


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.parquet"))


def read(path: Path) -> Foreign:
    arrow, files = _arrow(), files_of(path)
    check_regular(*files)
    try:
        schema = arrow.parquet.read_schema(files[0])
        spaces, shapes, env = _told(schema.metadata or {}, path)
        count = sum(arrow.parquet.read_metadata(file).num_rows for file in files)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or _one_line(error)}.") from None
    except arrow.ArrowException as error:
        raise BadData(f"{files[0]} is no Parquet file, or is cut short: {_one_line(error)}.") from None
    names = {ALIASES.get(name, name) for name in schema.names}
    for name in ("episode", "action", "reward", "terminated"):
        if name not in names:
            raise BadData(f"{path} lacks the column {name!r}; it has {', '.join(sorted(names))[:200]}.")
    if not any(tree.is_under(name, OBSERVATION) for name in names):
        raise BadData(f"{path} lacks the column 'observation'; it has {', '.join(sorted(names))[:200]}.")
    if not count:
        raise BadData(f"{path} has no step: there is nothing to learn from.")
    notes: list[str] = []
    reader = _Reader(path, files, shapes, notes)
    return Foreign(
        str(path),
        fingerprint_of(*files),
        reader.episodes,
        spaces=spaces,
        env=env,
        notes=notes,
        action_range=reader.action_range,
    )


def _told(metadata: Mapping[bytes, bytes], path: Path) -> tuple[SpacePair | None, dict[str, list[int]], str]:
    if METADATA not in metadata:
        return None, {}, ""
    try:
        record = json.loads(metadata[METADATA])
        pair = SpacePair(space_of(record["observation"]), space_of(record["action"]))
        shapes = {str(name): [int(size) for size in shape] for name, shape in record["shapes"].items()}
        return pair, shapes, str(record.get("env", ""))
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise BadData(f"{path} is damaged: its spaces cannot be read.") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


class _Reader:
    def __init__(self, path: Path, files: list[Path], shapes: Mapping[str, list[int]], notes: list[str]) -> None:
        self._path, self._files, self._shapes, self._notes = path, files, shapes, notes
        self._names: set[str] = set()

    def _batches(self, only: str | None = None) -> Iterator[tuple[Path, Columns]]:
        arrow = _arrow()
        for file in self._files:
            try:
                with arrow.parquet.ParquetFile(file, page_checksum_verification=True) as opened:
                    names = [ALIASES.get(name, name) for name in opened.schema_arrow.names]
                    self._check_names(file, names)
                    wanted = None
                    if only is not None:
                        wanted = [name for name in opened.schema_arrow.names if ALIASES.get(name, name) == only]
                    for batch in opened.iter_batches(BATCH, columns=wanted):
                        yield file, {ALIASES.get(name, name): self._array(batch, name) for name in batch.schema.names}
            except OSError as error:
                raise BadData(f"{file} cannot be read: {error.strerror or _one_line(error)}.") from None
            except arrow.ArrowException as error:
                raise BadData(f"{file} is no Parquet file, or is cut short: {_one_line(error)}.") from None

    def _check_names(self, file: Path, names: list[str]) -> None:
        """Every file has the columns of the first, each once."""
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadData(f"{file} has the column {twice!r} twice, perhaps under RLlib's name for it: leave one out.")
        self._names = self._names or set(names)
        if missing := sorted(self._names - set(names)):
            raise BadData(f"{file} lacks the column {missing[0]!r}, which {self._files[0]} has.")

    def _array(self, batch: Any, name: str) -> Array:
        """A column as an array; lists, however deep, all of the same length."""
        arrow, column, known = _arrow(), batch.column(name), ALIASES.get(name, name)
        shape: list[int] = [len(column)]
        while arrow.types.is_nested(column.type):
            if column.null_count or not hasattr(column, "flatten") or arrow.types.is_struct(column.type):
                raise BadData(f"{self._path}: the column {name!r} is no list of numbers, or has gaps.")
            below = column.flatten()
            each = len(below) // max(1, len(column))
            if each * len(column) != len(below) or not _alike(column, each):
                raise BadData(f"{self._path}: the column {name!r} has lists of different lengths.")
            shape.append(each)
            column = below
        if column.null_count:
            raise BadData(f"{self._path}: the column {name!r} has gaps: fill them or leave those rows out.")
        array: Array = column.to_numpy(zero_copy_only=False).reshape(shape)
        if known == "episode" and (array.ndim > 1 or (array.dtype.kind == "f" and np.isnan(array).any())):
            raise BadData(f"{self._path}: the column {name!r} must be a number or a name in every row.")
        told = self._shapes.get(known)
        if told is None or not len(batch):
            return array
        if math.prod(told) * len(batch) != array.size:
            raise BadData(f"{self._path} is damaged: {known!r} has not the shape {told} that it says.")
        return array.reshape(len(batch), *told)

    def action_range(self) -> tuple[Array, Array]:
        low = high = None
        for _, columns in self._batches("action"):
            least, most = columns["action"].min(0), columns["action"].max(0)
            low, high = (
                (least if low is None else np.minimum(low, least)),
                (most if high is None else np.maximum(high, most)),
            )
        assert low is not None
        assert high is not None
        return low, high

    def episodes(self) -> Iterator[Episode]:
        parts: list[Columns] = []
        current: Any = None
        seen: set[Any] = set()
        shortened = 0
        for file, columns in self._batches():
            ids = columns.pop("episode")
            changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
            for begin, end in zip((0, *changes.tolist()), (*changes.tolist(), len(ids))):
                if begin == end:
                    continue
                if parts and ids[begin] != current:
                    yield from self._finished(parts)
                    shortened += self._shortens(parts)
                    parts = []
                if not parts:
                    current = ids[begin]
                    if current in seen:
                        raise BadData(f"{file}: the steps of episode {current} do not follow each other: sort by both.")
                    seen.add(current)
                parts.append({name: array[begin:end] for name, array in columns.items()})
        if parts:
            yield from self._finished(parts)
            shortened += self._shortens(parts)
        if shortened:
            self._notes.append(
                f"there is no next_observation: of {shortened:,} episodes that were cut the last step served as the "
                "final observation"
            )

    def _shortens(self, parts: list[Columns]) -> bool:
        last = parts[-1]
        return not last["terminated"][-1] and not any(tree.is_under(name, "next_observation") for name in last)

    def _finished(self, parts: list[Columns]) -> Iterator[Episode]:
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        ended = flags(rows["terminated"], str(self._path), "terminated")
        cut = np.zeros(len(ended), bool)
        if "truncated" in rows:
            cut = flags(rows["truncated"], str(self._path), "truncated")
        early = np.flatnonzero((ended | cut)[:-1])
        if len(early):
            raise BadData(
                f"{self._path} has an episode that ends at step {int(early[0])} and goes on: give it two names."
            )
        observations = {name: rows[name] for name in rows if tree.is_under(name, OBSERVATION)}
        following = {
            name.removeprefix("next_"): rows[name] for name in rows if tree.is_under(name, "next_observation")
        } or None
        made = cut_steps(
            str(self._path),
            observations,
            following,
            rows["action"],
            rows["reward"].reshape(-1),
            bool(ended[-1]),
            bool(cut[-1]),
            rows.get("log_prob"),
        )
        if made is not None:
            yield made


def _alike(column: Any, each: int) -> bool:
    """Whether all lists of a column are of this length; lists of a fixed size are."""
    if not hasattr(column, "offsets"):
        return True
    offsets = column.offsets.to_numpy()
    return bool((np.diff(offsets) == each).all())


def write(data: Dataset, path: Path) -> None:
    """A folder of files, complete or absent."""
    arrow = _arrow()
    names = [name for name in data.record.names or () if tree.is_under(name, OBSERVATION)]
    shapes = {name: list(data.record[name].shape) for name in ("action", *names)}
    shapes |= {f"next_{name}": shapes[name] for name in names}
    record = {
        "observation": to_record(data.observation_space),
        "action": to_record(data.manifest.native_action_space),
        "shapes": shapes,
        "env": data.env,
    }
    try:
        path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise BadData(f"{path} is there already: name a new folder, nothing is written over.") from None
    except OSError as error:
        raise BadData(f"{path} cannot be written: {error.strerror or error}.") from None
    try:
        begin, number = 0, 0
        while begin < len(data):
            end = begin
            rows = 0
            while end < len(data) and (end == begin or rows + int(data.lengths[end]) <= WRITTEN_AT_ONCE):
                rows += int(data.lengths[end])
                end += 1
            table = _table(arrow, data, begin, end, names).replace_schema_metadata({METADATA: json.dumps(record)})
            temporary = path / f"part-{number:05d}.new"
            arrow.parquet.write_table(table, temporary, write_page_checksum=True)
            temporary.rename(path / f"part-{number:05d}.parquet")
            begin, number = end, number + 1
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)  # all of it, or nothing
        if isinstance(error, OSError):
            raise BadData(f"{path} cannot be written: {error.strerror or _one_line(error)}.") from None
        raise


def _table(arrow: Any, data: Dataset, begin: int, end: int, names: list[str]) -> Any:
    index = data.index[begin:end]
    first, stop = int(index["first"][0]), int(index["first"][-1] + index["length"][-1] + 1)
    rows = data.rows[first:stop]
    steps = np.flatnonzero(rows["valid"])
    cut = np.zeros(len(rows), bool)
    cut[index["first"] - first + index["length"] - 1] = index["truncated"]
    columns: dict[str, Any] = {"episode": np.repeat(np.arange(begin, end), index["length"])}
    for name in names:
        columns[name], columns[f"next_{name}"] = rows[name][steps], rows[name][steps + 1]
    columns["action"] = rows["action"][steps] + native_start(data)
    columns |= {"reward": rows["reward"][steps], "terminated": rows["terminated"][steps], "truncated": cut[steps]}
    if data.manifest.log_probs:
        columns["log_prob"] = rows["log_prob"][steps]
    return arrow.table({name: _column(arrow, array) for name, array in columns.items()})


def _column(arrow: Any, array: Array) -> Any:
    if array.ndim == 1:
        return arrow.array(array)
    width = int(np.prod(array.shape[1:]))
    return arrow.FixedSizeListArray.from_arrays(arrow.array(np.ascontiguousarray(array).reshape(-1)), width)
