"""What a checkpoint's manifest may say: every field is checked before anything is made of it, and nothing is executed.

A manifest is a file like any other: it may come from a stranger. What is wrong is a ValueError here, of which `load`
makes a BadCheckpoint.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.types import Array

from .chunks import Schema, Store, row_bytes
from .files import MOST_COMPRESSED
from .limiters import Round
from .memory import Memory
from .numbers import LONGEST_CHUNK, LONGEST_ITEM, check_priorities, check_whole
from .tables import EMPTY, ITEM, RunningTable
from .views import VIEWS, Transition, View, Whole

_LOG = re.compile(r"rows-\d{6,9}\.log")
_MOST_COUNTED = 1 << 62
_MOST_COLUMNS = 10_000


def need(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)


def mapping(value: Any, what: str) -> dict[str, Any]:
    need(isinstance(value, dict), f"{what} is not a dict")
    checked: dict[str, Any] = value
    return checked


def listed(value: Any, what: str, most: int = 1 << 24) -> list[Any]:
    need(isinstance(value, list) and len(value) <= most, f"{what} is not a list")
    checked: list[Any] = value
    return checked


# ---- views


def describe_view(view: View | None) -> Any:
    """A view as the name of its class and its fields."""
    if view is None:
        return None
    name = type(view).__name__
    if VIEWS.get(name) is not type(view) or not dataclasses.is_dataclass(view):
        raise ValueError(f"the view {view!r} cannot be saved; make it a dataclass known by shoal.replay.register_view")
    return [name, {each.name: getattr(view, each.name) for each in dataclasses.fields(view)}]


def restore_view(described: Any) -> View | None:
    if described is None:
        return None
    name, given = listed(described, "a view", 2)
    need(isinstance(name, str) and name in VIEWS, f"there is no view {name!r}; those known are {', '.join(VIEWS)}")
    kind = VIEWS[name]
    fields = {each.name for each in dataclasses.fields(kind) if each.init}
    values = {key: _plain(value) for key, value in mapping(given, "a view's fields").items()}
    need(values.keys() <= fields, f"the view {name} has no fields {sorted(values.keys() - fields)}")
    if name == "Transition":
        need(all(type(column) is str for column in values["following"]), "the columns that follow are not names")
    view: View = kind(**values)
    hash(view)
    return view


def _plain(value: Any) -> Any:
    """Numbers and text, and tuples of them."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    need(value is None or type(value) in (bool, int, float, str), f"a view's field is a {type(value).__name__}")
    return value


# ---- stores


def check_schema(described: Any, length: Any, memory: Memory) -> Schema:
    schema = []
    for name, shape, kind in listed(described, "a store's schema", _MOST_COLUMNS):
        need(type(name) is str and type(kind) is str, "a column's name or dtype is not text")
        dtype = np.dtype(kind)
        need(not dtype.hasobject and dtype.itemsize > 0, f"column {name!r} has the dtype {kind}")
        sizes = tuple(check_whole(f"shape of {name!r}", size, 0) for size in listed(shape, "a shape", 32))
        need(math.prod(sizes) < 1 << 40, f"column {name!r} has rows of shape {sizes}")
        schema.append((name, sizes, dtype.str))
    need(
        schema and [name for name, _, _ in schema] == sorted({name for name, _, _ in schema}), "columns are not sorted"
    )
    check_whole("length of chunks", length, 1, LONGEST_CHUNK)
    need(length & (length - 1) == 0, f"chunks of {length} rows are none")
    need(row_bytes(tuple(schema)) * length <= memory.limit() // 2, "a chunk is larger than what there is room for")
    return tuple(schema)


def check_links(following: Array | None, limit: int) -> Array:
    need(following is not None and following.dtype == np.int64 and following.ndim == 1, "chunks are not linked")
    assert following is not None
    count = len(following)
    need(count <= limit, f"{count:,} chunks are more than there is room for")
    need(
        not count or (following.min() >= 0 and following.max() < count), "a chunk is followed by one that is not there"
    )
    return following


def check_records(described: Any, chunks: Array | None, count: int, sizes: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """(file, chunks, columns) of each record; `sizes` are the bytes of a chunk per column."""
    need(chunks is not None and chunks.dtype == np.int64 and chunks.ndim == 1, "a store's chunks are not numbers")
    assert chunks is not None
    used = chunks[chunks >= 0]
    need(not len(chunks) or (chunks.min() >= -1 and chunks.max() < count), "a record holds chunks that are not there")
    need(len(np.unique(used)) == len(used), "a chunk is in two records")
    records, at = [], 0
    for file, members, columns in listed(described, "a store's records"):
        need(type(file) is str and _LOG.fullmatch(file), f"{file!r} is not the name of a log")
        check_whole("chunks of a record", members, 1, len(chunks) - at)
        need(mapping(columns, "a record's columns").keys() == sizes.keys(), "a record has other columns than its store")
        places = {}
        for name, (offset, size, checksum) in columns.items():
            for what in (offset, size, checksum):
                check_whole("place of a column", what, 0, _MOST_COUNTED)
            need(members * sizes[name] <= MOST_COMPRESSED * size + 1024, "a record claims more than its bytes can hold")
            places[name] = (offset, size, checksum)
        records.append((file, chunks[at : at + members], places))
        at += members
    need(at == len(chunks), "chunks are in no record")
    return records


# ---- tables


def check_numbers(numbers: Any, table: RunningTable, stores: int) -> dict[str, Any]:
    """A table's counters, limiter and generator."""
    given, name = mapping(numbers, "a table"), table.description.name
    for what in ("inserts", "samples", "deletes", "refused", "repeated", "stale_updates"):
        check_whole(f"{what} of table {name!r}", given[what], 0, _MOST_COUNTED >> 32)
    if given["store"] is not None:
        check_whole(f"store of table {name!r}", given["store"], 0, stores - 1)
    need((given["round"] is None) != isinstance(table.limiter, Round), f"table {name!r} had another limiter")
    random = mapping(given["random"], "a generator")
    state = mapping(random["state"], "a generator's state")
    need(random["bit_generator"] == "PCG64", "the generator is of an unknown kind")
    for what in ("state", "inc"):
        check_whole(f"{what} of a generator", state[what], 0, 2**128 - 1)
    need(state["inc"] % 2, "the generator's increment is even")
    check_whole("has_uint32 of a generator", random["has_uint32"], 0, 1)
    check_whole("uinteger of a generator", random["uinteger"], 0, 2**32 - 1)
    return given


def check_arrays(numbers: Mapping[str, Any], arrays: Mapping[str, Array], table: RunningTable) -> None:
    """A table's items, free slots, states and orders fit each other and its counters."""
    name, slots = table.description.name, table.description.slots
    items, free = arrays["items"], arrays["free"]
    need(items.dtype == ITEM and items.ndim == 1 and len(items) <= slots, f"the items of table {name!r} are none")
    need(free.dtype == np.int32 and free.ndim == 1, f"the free slots of table {name!r} are none")
    key = items["key"]
    live = np.flatnonzero(key != EMPTY)
    need(np.array_equal(np.sort(free), np.flatnonzero(key == EMPTY)), f"table {name!r} has other free slots than gaps")
    bits = table.bits
    number = key[live] >> bits
    need((key[live] & ((1 << bits) - 1) == live).all(), f"a key of table {name!r} is of another slot")
    need(
        not len(live) or (number.min() >= 1 and number.max() <= numbers["inserts"]), f"a key of table {name!r} is none"
    )
    need(len(np.unique(number)) == len(number), f"two items of table {name!r} are of one insert")
    need(numbers["inserts"] - numbers["deletes"] == len(live), f"table {name!r} counted other items than it has")
    present = items[live]
    check_priorities(name, present["priority"])
    length, history = present["length"], present["history"]
    need(((length >= 1) & (history >= 0) & (history < length)).all(), f"an item of table {name!r} has no rows")
    most = table.description.max_times_sampled or np.iinfo(np.int32).max
    need(((present["times_sampled"] >= 0) & (present["times_sampled"] < most)).all(), "an item was sampled too often")
    for role, selector in (("sampler", table.sampler), ("remover", table.remover)):
        need((role in arrays) == (selector.saved_order() is not None), f"table {name!r} had another {role}")
        if role in arrays:
            order = arrays[role]
            need(order.dtype == np.int32 and np.array_equal(np.sort(order), live), f"the {role} has other items")
    for other, values in arrays.items():
        if other not in ("items", "free", "sampler", "remover"):
            need(other.startswith("state/") and values.ndim and len(values) == len(items), f"{other!r} is no state")
            need(values.dtype.kind in "biufc", f"the state {other!r} holds no numbers")


def check_rows(items: Array, following: Array, stored: Array, shift: int) -> None:
    """Every row of every item lies in a chunk that was stored, and chunks continue one stream each."""
    count = len(following)
    start = items["start"]
    need(not len(items) or (start.min() >= 0 and start.max() < count << shift), "an item begins outside of the rows")
    chunk = start >> shift
    beyond = ((start & ((1 << shift) - 1)) + items["length"].astype(np.int64) - 1) >> shift
    before = np.full(count, -1)
    while len(chunk):
        need(stored[chunk].all(), "an item reaches into rows that were not saved")
        pairs = np.unique(np.stack([chunk, beyond]), axis=1)  # items that go the same way need be followed once
        chunk, beyond = pairs[:, pairs[1] > 0]
        behind, beyond = following[chunk], beyond - 1
        need((behind != chunk).all(), "an item reaches beyond its stream")
        need(((before[behind] == -1) | (before[behind] == chunk)).all(), "two streams go on in one chunk")
        before[behind] = chunk
        need((before[behind] == chunk).all(), "two streams go on in one chunk")
        chunk = behind


def check_view(view: View, schema: Schema, items: Array, states: Mapping[str, Array], table: RunningTable) -> None:
    """The items are such as the view gathers, and the columns are there that it and the table's signature need."""
    columns = {name: (shape, kind) for name, shape, kind in schema}
    need(all(needed in columns for needed in view.needs), "the view needs columns that were not saved")
    taken = items["length"].astype(np.int64) - items["history"]
    longest, shortest = int(taken.max(initial=0)), int(taken.min(initial=LONGEST_ITEM))
    if isinstance(view, Whole):
        least = 1 if view.masked else view.rows
        need(not len(items) or least <= shortest <= longest <= view.rows, "items are longer or shorter than their view")
    elif isinstance(view, Transition):
        need(not len(items) or 2 <= shortest <= longest <= view.n + 1, "items are longer or shorter than their view")
        need(columns["reward"][1][1] in "iuf" and columns["reward"][0] == (), "rewards are no numbers")
        need(columns["terminated"] == ((), "|b1"), "ends of episodes are not bool")
    if table.limiter.refuses:
        need("version" in columns, "rows of a table with a quota have no version")
    for name, (shape, kind) in (table.description.signature or {}).items():
        saved = columns.get(name) or ((states[name].shape[1:], states[name].dtype.str) if name in states else None)
        need(saved == (shape, kind), f"column {name!r} is not as the table's signature says")


def check_writers(header: Mapping[str, Any]) -> None:
    for life, sequence in mapping(header["writers"], "the writers").values():
        need(type(life) is str, "a writer's life is not text")
        check_whole("sequence of a writer", sequence, -1, _MOST_COUNTED)
    for lives in mapping(header["ended"], "the lives that ended").values():
        need(all(type(life) is str for life in listed(lives, "lives", 1000)), "a life is not text")


# ---- writers in the middle of their streams


def check_streams(name: str, given: Any, stores: int) -> dict[str, int]:
    """The numbers of a writer's streams."""
    described = mapping(given, "a writer's streams")
    limits = {"store": (0, stores - 1), "environments": (1, 1 << 31)}
    limits |= dict.fromkeys(("first_row", "rows", "base"), (0, _MOST_COUNTED))
    numbers = {key: check_whole(f"{key} of writer {name!r}", described[key], *limits[key]) for key in limits}
    for counted in ("accepted", "refused"):
        for count in mapping(described[counted], f"what was {counted}").values():
            check_whole(f"{counted} of writer {name!r}", count, 0, _MOST_COUNTED)
    need(all(type(table) is str for table in listed(described["arriving"], "tables", 1000)), "a table is not a name")
    return numbers


def check_layers(numbers: Mapping[str, int], layers: Array, store: Store, taken: Array) -> None:
    """The chunks of a writer's streams are there, continue each other, and are nobody else's (`taken`)."""
    need(layers.dtype == np.int64 and layers.shape[1:] == (numbers["environments"],), "streams have no layers")
    need(not layers.size or (layers.min() >= 0 and layers.max() < store.fresh), "a stream lies outside of the rows")
    chunks = layers.ravel()
    need(len(np.unique(chunks)) == len(chunks) and not taken[chunks].any(), "two streams are in one chunk")
    taken[chunks] = True
    need((store.following[layers[:-1]] == layers[1:]).all(), "the chunks of a stream do not continue each other")
    rows = numbers["rows"] - numbers["base"]
    need(0 <= rows <= len(layers) << store.shift, "a stream has more rows than room")
    need(numbers["base"] <= numbers["first_row"] <= numbers["rows"], "a stream begins behind its end")


def check_arriving(columns: Mapping[str, Array], store: Store, stored: Array, table: RunningTable) -> None:
    """The items of a block that a limiter held up, as those of a table."""
    name, count = table.description.name, len(columns["start"])
    items = np.zeros(count, ITEM)
    for column in ("start", "length", "history"):
        need(columns[column].dtype.kind == "i" and columns[column].ndim == 1, f"items for table {name!r} lie nowhere")
        items[column] = columns[column]
    need(((items["length"] >= 1) & (items["history"] >= 0) & (items["history"] < items["length"])).all(), "no rows")
    need(all(len(values) == count for values in columns.values()), f"columns of items for table {name!r} differ")
    check_priorities(name, columns["priorities"])
    check_rows(items, store.following[: store.fresh], stored, store.shift)
    need(("versions" in columns) == isinstance(table.limiter, Round), f"items for table {name!r} have no versions")
    states = {key: values for key, values in columns.items() if key.startswith("state/")}
    need(
        {key: (v.shape[1:], v.dtype) for key, v in states.items()}
        == {key: (v.shape[1:], v.dtype) for key, v in table.states.items()},
        "items have other states than their table",
    )
