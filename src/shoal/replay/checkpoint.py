"""Saving and loading: rows go to logs once, everything else to a manifest that is renamed into place.

A chunk does not change any more once it is full, so a save to the same directory appends only what is new. A log of
which less than half is still in use is written again. The manifest names every record and its checksum: whatever it
does not name does not exist, and a directory holds the last save that was completed, or none.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.types import Array

from . import manifest as checks
from .arrays import as_slice
from .chunks import Schema, Store, Streams
from .errors import BadCheckpoint
from .files import pack, read_header, read_whole, sync_directory, unpack, write_whole
from .intake import Arriving, Intake, KnownWriter
from .memory import Memory
from .tables import EMPTY, RunningTable

_RECORD_BYTES = 2 << 20  # small enough that unpacking stays within the cache
_TAG = re.compile(r"[\w.-]{1,100}")
_READERS = 2  # threads that unpack rows while loading


@dataclass
class Record:
    """Some chunks of a store in a log: all columns, one after the other."""

    file: str
    chunks: Array  # int64; -1 where the chunk is not in use any more
    generations: Array  # of the chunks when they were written; -1 for one that was not full
    columns: dict[str, tuple[int, int, int]]  # offset, size, checksum


@dataclass
class Saved:
    """What the logs of a directory hold, kept between saves."""

    records: dict[Schema, list[Record]] = field(default_factory=dict)


@dataclass
class Snapshot:
    """A copy of everything but the rows, which stay as they are while the tickets are held."""

    header: dict[str, Any]
    arrays: dict[str, Array]
    stores: list[Store]
    following: list[Array]
    generations: list[Array]
    growing: list[Array]  # chunks that are not full
    tickets: list[int]


class Copier:
    """Copies arrays into memory that was touched before, so that the pause of a save is not spent on page faults."""

    def __init__(self, size: int) -> None:
        self._memory = np.zeros(size, np.uint8)
        self._memory[:: 1 << 12] = 1
        self._used = 0

    def __call__(self, array: Array) -> Array:
        end = self._used + -(-array.nbytes // 64) * 64
        if end > len(self._memory):  # the table grew since the size was taken
            return array.copy()
        copy = self._memory[self._used : self._used + array.nbytes]
        self._used = end
        copy[:] = array.reshape(-1).view(np.uint8)  # bytes, since numpy copies records field by field
        return copy.view(array.dtype).reshape(array.shape)


def snapshot_size(tables: Mapping[str, RunningTable]) -> int:
    return sum(array.nbytes + 64 for table in tables.values() for array in table.saved_arrays().values()) + (1 << 20)


def take_snapshot(tables: Mapping[str, RunningTable], intake: Intake, copy: Copier) -> Snapshot:
    """With the service's lock held: the pause that a save makes."""
    stores = list(intake.stores.values())
    arrays, descriptions = {}, {}
    for name, table in tables.items():
        arrays.update({f"table {name}|{key}": copy(array) for key, array in table.saved_arrays().items()})
        described = table.saved_numbers()
        described["store"] = stores.index(table.store) if table.store is not None else None
        described["view"] = checks.describe_view(table.view)
        descriptions[name] = described
    streams = [writer.streams for writer in intake.writers.values() if writer.streams is not None]
    empty = np.empty(0, np.int64)
    return Snapshot(
        header={
            "tables": descriptions,
            "writers": {writer.name: [writer.life, writer.sequence] for writer in intake.writers.values()},
            "ended": {name: list(lives) for name, lives in intake.ended.items()},
            "open": _describe_open(intake, stores, arrays),
        },
        arrays=arrays,
        stores=stores,
        following=[store.following[: store.fresh].copy() for store in stores],
        generations=[store.generations[: store.fresh].copy() for store in stores],
        growing=[np.concatenate([empty, *(s.growing() for s in streams if s.store is store)]) for store in stores],
        tickets=[store.begin_reading() for store in stores],
    )


def _describe_open(intake: Intake, stores: list[Store], arrays: dict[str, Array]) -> dict[str, Any]:
    """Where the streams of writers stand, and which items of their newest blocks limiters hold up."""
    described: dict[str, Any] = {}
    for name, writer in intake.writers.items():
        if (streams := writer.streams) is None:
            continue
        arrays[f"writer {name}|layers"] = streams.layers.copy()
        described[name] = streams.saved() | {
            "store": stores.index(streams.store),
            "accepted": dict(writer.accepted),
            "refused": dict(writer.refused),
            "arriving": list(writer.arriving),
        }
        for table, arriving in writer.arriving.items():
            mark = f"writer {name}|{table}|"
            arrays.update({mark + column: values.copy() for column, values in arriving.left().items()})
    return described


def manifest_name(tag: str | None) -> str:
    """The file of a save: one that has no tag is the directory's only one."""
    if tag is not None and not _TAG.fullmatch(tag):
        raise ValueError(f"tag={tag!r} must be letters, digits, '.', '_' and '-', at most 100")
    return "manifest" if tag is None else f"manifest-{tag}"


def save(path: Path, snapshot: Snapshot, before: Saved, manifest: str, keep: Collection[str]) -> tuple[Saved, int]:
    """Write what the logs lack, then the manifest; what the directory holds now, and the bytes written. What fails
    leaves nothing: others need a disk that is full."""
    path.mkdir(parents=True, exist_ok=True)
    # never a name that is taken: the manifest in place may need that file until it is replaced
    number = 1 + max((int(log.stem[5:]) for log in path.glob("rows-*.log") if log.stem[5:].isdigit()), default=-1)
    log = f"rows-{number:06d}.log"
    try:
        after, written = _write(path, log, snapshot, before, manifest)
    except OSError:
        (path / f"{manifest}.new").unlink(missing_ok=True)
        if log not in _logs_of(path / manifest):
            (path / log).unlink(missing_ok=True)
        raise
    _remove_leftovers(path, {record.file for records in after.records.values() for record in records}, manifest, keep)
    return after, written


def _write(path: Path, log: str, snapshot: Snapshot, before: Saved, manifest: str) -> tuple[Saved, int]:
    after, written = Saved(), 0
    with open(path / log, "wb") as file:
        for index, store in enumerate(snapshot.stores):
            used = _chunks_in_use(snapshot, index)
            kept = _still_good(before.records.get(store.schema, []), used, snapshot.generations[index])
            for record in kept:
                used[record.chunks[record.chunks >= 0]] = False
            new = _write_records(file, log, store, np.flatnonzero(used), snapshot, index)
            after.records[store.schema] = [*kept, *new]
        file.flush()
        os.fsync(file.fileno())
        written += file.tell()
    header, arrays = dict(snapshot.header), dict(snapshot.arrays)
    header["stores"] = []
    for index, store in enumerate(snapshot.stores):
        records = after.records[store.schema]
        header["stores"].append(
            {
                "schema": [[name, list(shape), kind] for name, shape, kind in store.schema],
                "length": store.length,
                "records": [[record.file, len(record.chunks), record.columns] for record in records],
            }
        )
        arrays[f"store {index}|chunks"] = _concatenate([record.chunks for record in records])
        arrays[f"store {index}|following"] = snapshot.following[index]
    sync_directory(path)
    written += write_whole(path / manifest, header, arrays)
    return after, written


def _remove_leftovers(path: Path, logs: set[str], manifest: str, keep: Collection[str]) -> None:
    """Remove saves that are not to be kept, then logs that no save refers to, and what a killed save left."""
    for other in path.glob("manifest*"):
        if other.name == manifest:
            continue
        if other.name in keep:
            logs |= _logs_of(other)
        else:
            other.unlink()
    for old in path.glob("rows-*.log"):
        if old.name not in logs:
            old.unlink()


def _logs_of(manifest: Path) -> set[str]:
    """Those that a save refers to. A damaged one holds nothing back; whoever loads it is told."""
    try:
        return {record[0] for store in read_header(manifest)["stores"] for record in store["records"]}
    except (BadCheckpoint, LookupError, TypeError):
        return set()


def _chunks_in_use(snapshot: Snapshot, index: int) -> Array:
    """Which chunks of a store items refer to, or those to come may, as a mask over chunks."""
    store = snapshot.stores[index]
    used = np.zeros(len(snapshot.following[index]), bool)
    for name, described in snapshot.header["tables"].items():
        if described["store"] != index:
            continue
        items = snapshot.arrays[f"table {name}|items"]
        items = items[items["key"] != EMPTY]
        chunk = items["start"] >> store.shift
        beyond = ((items["start"] & store.mask) + items["length"] - 1) >> store.shift  # chunks that it reaches into
        while len(chunk):
            used[chunk] = True
            further = beyond > 0
            chunk, beyond = snapshot.following[index][chunk[further]], beyond[further] - 1
    for name, described in snapshot.header["open"].items():
        if described["store"] == index:
            used[snapshot.arrays[f"writer {name}|layers"].ravel()] = True  # later items may begin there
    return used


def _still_good(records: list[Record], used: Array, generations: Array) -> list[Record]:
    """Records of which at least half is in use and unchanged."""
    kept = []
    for record in records:
        known = (record.chunks >= 0) & (record.chunks < len(used))
        chunks = np.where(known, record.chunks, 0)
        good = known & used[chunks] & (generations[chunks] == record.generations)
        if 2 * np.count_nonzero(good) >= len(good):
            kept.append(dataclasses.replace(record, chunks=np.where(good, record.chunks, -1)))
    return kept


def _write_records(file: Any, log: str, store: Store, chunks: Array, snapshot: Snapshot, index: int) -> list[Record]:
    records = []
    step = max(1, _RECORD_BYTES // (store.length * max(1, store.row_bytes)))
    growing = np.isin(chunks, snapshot.growing[index])
    generations = np.where(growing, -1, snapshot.generations[index][chunks])
    for begin in range(0, len(chunks), step):
        group = chunks[begin : begin + step]
        columns = {}
        for name, values in store.chunks.items():
            packed = pack(values[as_slice(group)])
            columns[name] = (file.tell(), len(packed), zlib.crc32(packed))
            file.write(packed)
        records.append(Record(log, group, generations[begin : begin + step], columns))
    return records


@dataclass
class Loaded:
    """A checkpoint that was read and verified."""

    header: dict[str, Any]
    arrays: dict[str, Array]
    stores: list[Store]
    saved: Saved
    writers: dict[str, KnownWriter] = field(default_factory=dict)

    def arrays_of(self, table: str) -> dict[str, Array]:
        mark = f"table {table}|"
        return {key.removeprefix(mark): array for key, array in self.arrays.items() if key.startswith(mark)}


def load(
    path: Path, memory: Memory, tables: Mapping[str, RunningTable], manifest: str
) -> tuple[Loaded, dict[str, RunningTable]]:
    """Read and verify a checkpoint, and make tables as in it; those given say what they must be like."""
    header, arrays = read_whole(path / manifest)
    try:
        checks.check_writers(header)
        described = checks.mapping(header["tables"], "the tables")
        if described.keys() != tables.keys():
            raise BadCheckpoint(f"the checkpoint holds the tables {sorted(described)}, this service {sorted(tables)}")
        loaded = Loaded(header, arrays, [], Saved())
        for index, store in enumerate(checks.listed(header["stores"], "the stores", 1000)):
            _load_store(path, loaded, index, store, memory)
        restored = _restore_tables(loaded, tables)
        loaded.writers = _restore_writers(loaded, restored)
        for store in loaded.stores:
            store.free_unreferenced()
        return loaded, restored
    except BadCheckpoint:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, TypeError, ValueError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise BadCheckpoint(f"{path / manifest} does not hold together: {what}") from None


def _load_store(path: Path, loaded: Loaded, index: int, described: Any, memory: Memory) -> None:
    length = checks.mapping(described, "a store")["length"]
    schema = checks.check_schema(described["schema"], length, memory)
    if schema in loaded.saved.records:
        raise BadCheckpoint("two stores have the same columns")
    store = Store(schema, length, memory)
    following = checks.check_links(loaded.arrays.get(f"store {index}|following"), store.limit)
    sizes = {name: chunks.strides[0] for name, chunks in store.chunks.items()}
    chunks = loaded.arrays.get(f"store {index}|chunks")
    records = [
        Record(file, members, np.where(members >= 0, 0, -1), columns)
        for file, members, columns in checks.check_records(described["records"], chunks, len(following), sizes)
    ]
    store.restore(following)
    with ThreadPoolExecutor(_READERS) as readers:  # unpacking, and copying to memory never used before, take long
        for _ in readers.map(partial(_read_record, path, store), records):
            pass
    loaded.stores.append(store)
    loaded.saved.records[schema] = records


def _read_record(path: Path, store: Store, record: Record) -> None:
    log = path / record.file
    good = record.chunks >= 0
    chunks = record.chunks[good]
    whole = len(chunks) == len(good)
    target = as_slice(chunks)
    for name, place in record.columns.items():
        packed = _read_column(log, name, *place)
        stored = store.chunks[name]
        values = unpack(packed, (len(good), *stored.shape[1:]), stored.dtype)
        stored[target] = values if whole else values[good]


def _read_column(log: Path, name: str, offset: int, size: int, checksum: int) -> bytes:
    try:
        if not log.is_file():  # a pipe would be waited for
            raise FileNotFoundError(errno.ENOENT, "No such file")
        with open(log, "rb") as file:
            file.seek(offset)
            packed = file.read(size)
    except OSError as error:
        raise BadCheckpoint(f"{log} cannot be read: {error.strerror}") from None
    if len(packed) != size or zlib.crc32(packed) != checksum:
        raise BadCheckpoint(f"{log} is damaged: column {name!r} at byte {offset} does not fit its checksum")
    return packed


def verify(path: Path, tag: str | None) -> None:
    """Compare the files of a save with their checksums, without loading it; BadCheckpoint where one does not fit."""
    header = read_whole(path / manifest_name(tag))[0]
    try:
        for store in header["stores"]:
            for log, _, columns in store["records"]:
                for name, (offset, size, checksum) in columns.items():
                    _read_column(path / log, name, offset, size, checksum)
    except BadCheckpoint:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise BadCheckpoint(f"{path / manifest_name(tag)} does not hold together: {error}") from None


def _restore_tables(loaded: Loaded, tables: Mapping[str, RunningTable]) -> dict[str, RunningTable]:
    restored = {}
    for name, table in tables.items():
        numbers = checks.check_numbers(loaded.header["tables"][name], table, len(loaded.stores))
        fresh, arrays = table.fresh_copy(), loaded.arrays_of(name)
        fresh.check_description(numbers)
        checks.check_arrays(numbers, arrays, fresh)
        view = checks.restore_view(numbers["view"])
        store = None if numbers["store"] is None else loaded.stores[numbers["store"]]
        items = arrays["items"][arrays["items"]["key"] != EMPTY]
        if store is None or view is None:
            checks.need(store is None and view is None and not len(items), f"table {name!r} has items without rows")
        else:
            checks.check_rows(items, store.following[: store.fresh], _stored(loaded, store), store.shift)
            checks.check_view(view, store.schema, items, arrays, fresh)
        fresh.restore(numbers, arrays, store, view)
        restored[name] = fresh
    return restored


def _stored(loaded: Loaded, store: Store) -> Array:
    """Which chunks the checkpoint has rows of."""
    stored = np.zeros(store.fresh, bool)
    for record in loaded.saved.records[store.schema]:
        stored[record.chunks[record.chunks >= 0]] = True
    return stored


def _restore_writers(loaded: Loaded, tables: Mapping[str, RunningTable]) -> dict[str, KnownWriter]:
    """The writers as they were, each in the middle of its newest block if that was held up."""
    lives = loaded.header["writers"]
    writers = {name: KnownWriter(name, life, sequence) for name, (life, sequence) in lives.items()}
    begun = [np.zeros(store.fresh, bool) for store in loaded.stores]  # chunks that a stream has
    for name, given in checks.mapping(loaded.header.get("open", {}), "the open streams").items():
        checks.need(name in writers, f"there are streams of a writer {name!r} that is not known")
        numbers = checks.check_streams(name, given, len(loaded.stores))
        store = loaded.stores[numbers["store"]]
        layers = loaded.arrays[f"writer {name}|layers"]
        checks.check_layers(numbers, layers, store, begun[numbers["store"]])
        writer = writers[name]
        writer.streams = Streams.restored(store, numbers, layers)
        for record in loaded.saved.records[store.schema]:  # rows are still to come: the next save writes them again
            record.generations[np.isin(record.chunks, writer.streams.growing())] = -1
        writer.accepted, writer.refused = dict(given["accepted"]), dict(given["refused"])
        for table in given["arriving"]:
            checks.need(tables[table].store is store, f"items of writer {name!r} are for a table of other rows")
            mark = f"writer {name}|{table}|"
            columns = {key.removeprefix(mark): values for key, values in loaded.arrays.items() if key.startswith(mark)}
            checks.check_arriving(columns, store, _stored(loaded, store), tables[table])
            writer.arriving[table] = Arriving.of(columns)
    return writers


def _concatenate(arrays: list[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
