"""What is wrong with a block or a request, in one sentence, before anything changes."""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from .chunks import Store, Streams
from .messages import Array, Block, Items
from .tables import RunningTable


def check_block(block: Block, streams: Streams | None, tables: Mapping[str, RunningTable]) -> tuple[int, int]:
    """Raise ValueError unless the block's rows and items can be stored; else its rows and environments.

    `streams` are those of its writer so far.
    """
    rows, environments = check_rows(block.columns)
    if streams is not None:
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


def check_rows(columns: Mapping[str, Array]) -> tuple[int, int]:
    """The T and B that all columns share."""
    shape: tuple[int, ...] | None = None
    for name, values in columns.items():
        if values.ndim < 2:
            raise ValueError(f"column {name!r} has shape {values.shape}; columns are [time, environment, ...]")
        if values.dtype.hasobject:
            raise ValueError(f"column {name!r} holds Python objects; give it a numeric dtype")
        if shape is None:
            shape = values.shape[:2]
        elif values.shape[:2] != shape:
            raise ValueError(f"column {name!r} has {values.shape[:2]} rows and environments where others have {shape}")
    if shape is None:
        raise ValueError("a block needs at least one column")
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
    states = {column: (values.shape[1:], values.dtype) for column, values in items.states.items()}
    if table.view is not None:
        held = {column: (values.shape[1:], values.dtype) for column, values in table.states.items()}
        if states != held:
            raise ValueError(f"table {name!r} holds the states {held}; these items have {states}")
    if not count:
        return
    if spans.length.max() > window:
        raise ValueError(
            f"an item of {spans.length.max()} rows for {name!r} is longer than its writer's window, {window}"
        )
    if (
        not 0 <= spans.environment.min() <= spans.environment.max() < environments
        or (spans.start + spans.length).max() > rows
        or spans.length.min() < 1
        or (spans.history.any() and not (spans.history.min() >= 0 and (spans.history < spans.length).all()))
    ):
        raise ValueError(f"an item for table {name!r} lies outside of the rows that its writer has sent")


def check_priorities(table: str, priorities: Array) -> None:
    if len(priorities) and not (priorities.min() >= 0 and priorities.max() < np.inf):
        bad = priorities[~((priorities >= 0) & (priorities < np.inf))][0]
        raise ValueError(f"table {table!r} was given the priority {bad}; priorities are finite and not negative")


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


def check_window(block: Block, store: Store) -> None:
    if block.window > store.length:
        raise ValueError(
            f"items of writer {block.writer!r} reach over {block.window} rows and the chunk window is {store.length}; "
            f"give the replay service chunk_length={block.window}"
        )
