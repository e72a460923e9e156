"""What is wrong with a block or a request, in one sentence, before anything changes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from shoal.types import Array

from .chunks import Store, Streams
from .messages import Block, Items
from .numbers import LONGEST_ITEM, check_priorities
from .tables import RunningTable

ColumnShapes = list[tuple[str, tuple[int, ...], np.dtype[Any]]]  # what columns look like


def shapes_of(columns: Mapping[str, Array]) -> ColumnShapes:
    return [(name, values.shape, values.dtype) for name, values in columns.items()]


def check_block(
    block: Block, streams: Streams | None, tables: Mapping[str, RunningTable], familiar: bool
) -> tuple[int, int]:
    """Raise ValueError unless the block's rows and items can be stored; else its rows and environments.

    `streams` are those of its writer so far; `familiar` columns look like those of its last block.
    """
    rows, environments = shape_of(block.columns) if familiar else check_rows(block.columns)
    if block.window > LONGEST_ITEM:
        raise ValueError(
            f"items of writer {block.writer!r} reach over {block.window:,} rows; the chunk window is {LONGEST_ITEM:,}"
        )
    if streams is not None and not familiar:
        if environments != streams.environments:
            raise ValueError(
                f"writer {block.writer!r} sent {environments} environments after {streams.environments}; "
                "open a new writer when their number changes"
            )
        check_columns(block.columns, streams.store, "writer", block.writer)
    for name, items in block.items.items():
        table = tables.get(name)
        if table is None:
            raise ValueError(f"there is no table {name!r}; there are {', '.join(map(repr, tables))}")
        check_items(
            name,
            items,
            table,
            block.columns,
            rows=block.first_row + rows,
            environments=environments,
            window=block.window,
        )
        if table.store is not None and (streams is None or table.store is not streams.store):
            check_columns(block.columns, table.store, "table", name)
        if table.description.signature is not None:
            check_signature(block, name, table.description.signature)
        if table.limiter.refuses and "version" not in block.columns:
            raise ValueError(f"table {name!r} has a quota per version; send a column 'version' with the rows")
    return rows, environments


def shape_of(columns: Mapping[str, Array]) -> tuple[int, int]:
    """The T and B of columns that were checked before."""
    shape = next(iter(columns.values())).shape
    return shape[0], shape[1]


def check_rows(columns: Mapping[str, Array]) -> tuple[int, int]:
    """The T and B that all columns share."""
    shape: tuple[int, ...] = ()
    for name, values in columns.items():
        own = values.shape[:2]
        if own != shape:
            if len(own) < 2:
                raise ValueError(f"column {name!r} has shape {own}; columns are [time, environment, ...]")
            if shape:
                raise ValueError(f"column {name!r} has {own} rows and environments where others have {shape}")
            shape = own
        if values.dtype.hasobject:
            raise ValueError(f"column {name!r} holds Python objects; give it a numeric dtype")
    if not shape or 0 in shape:
        raise ValueError(
            f"a block needs a column, a row and an environment at least; this one has {shape or 'nothing'}"
        )
    return shape[0], shape[1]


def check_columns(columns: Mapping[str, Array], store: Store, holder: str, named: str) -> None:
    """The same names, shapes and dtypes as the store's, which a table or a writer has rows in."""
    expected = store.columns
    what = f"{holder} {named!r} has"
    if columns.keys() != expected.keys():
        for name in columns:
            if name not in expected:
                raise ValueError(f"column {name!r} is not among those that {what}: {', '.join(sorted(expected))}")
        missing = next(name for name in expected if name not in columns)
        raise ValueError(f"column {missing!r} is missing; {what} it")
    for name, values in columns.items():
        stored = expected[name]
        if values.shape[2:] != stored.shape[1:]:
            raise ValueError(f"column {name!r} has rows of shape {values.shape[2:]}; {what} {stored.shape[1:]}")
        if values.dtype != stored.dtype:
            raise ValueError(f"column {name!r} is {values.dtype}; {what} {stored.dtype}")


def check_items(
    name: str,
    items: Items,
    table: RunningTable,
    columns: Container[str],
    *,
    rows: int,
    environments: int,
    window: int,
) -> None:
    spans, count = items.spans, len(items.spans)
    if len(items.priorities) != count:
        raise ValueError(f"table {name!r} was sent {count} items with {len(items.priorities)} priorities")
    check_priorities(name, items.priorities)
    if table.view is None:
        missing = next((needed for needed in items.view.needs if needed not in columns), None)
        if missing is not None:
            raise ValueError(f"column {missing!r} is missing; the pattern of table {name!r} needs it")
    elif table.view != items.view:
        raise ValueError(f"table {name!r} holds items of the pattern {table.view}; it cannot also hold {items.view}")
    if table.view is not None and (items.states or table.states):
        states = {column: (values.shape[1:], values.dtype) for column, values in items.states.items()}
        held = {column: (values.shape[1:], values.dtype) for column, values in table.states.items()}
        if states != held:
            raise ValueError(f"table {name!r} holds the states {held}; these items have {states}")
    if not count:
        return
    largest, smallest = np.maximum.reduce, np.minimum.reduce  # `max` and `min` without the detour
    longest, shortest = largest(spans.length), smallest(spans.length)
    if longest > window:
        raise ValueError(f"an item of {longest} rows for {name!r} is longer than its writer's window, {window}")
    # the extremes tell most of the time; only where they do not, each item is looked at
    if (
        shortest < 1
        or not 0 <= smallest(spans.environment) <= largest(spans.environment) < environments
        or (largest(spans.start) + longest > rows and largest(spans.start + spans.length) > rows)
        or smallest(spans.history) < 0
        or (largest(spans.history) >= shortest and (spans.history >= spans.length).any())
    ):
        raise ValueError(f"an item for table {name!r} lies outside of the rows that its writer has sent")


def check_signature(block: Block, table: str, signature: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    rows = {name: (values.shape[2:], values.dtype.str) for name, values in block.columns.items()}
    rows |= {name: (values.shape[1:], values.dtype.str) for name, values in block.items[table].states.items()}
    for name, (shape, kind) in signature.items():
        if name not in rows:
            raise ValueError(f"column {name!r} is missing; the signature of table {table!r} names it")
        if rows[name] != (shape, kind):
            raise ValueError(
                f"column {name!r} is {np.dtype(rows[name][1])} of shape {rows[name][0]}; "
                f"the signature of table {table!r} says {np.dtype(kind)} of shape {shape}"
            )
