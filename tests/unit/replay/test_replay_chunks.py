"""Rows lie where their addresses say, however chunks lie to each other and whatever was forgotten before."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.replay.chunks import Store, Streams, schema_of, write
from shoal.replay.memory import Memory


def rows_of(first: int, count: int, environments: int) -> dict[str, np.ndarray]:
    """Columns of every way of copying: a plain number, a row as large as one, an odd one and one without entries."""
    number = np.arange(first, first + count)[:, None] * 100 + np.arange(environments)
    return {
        "number": number,
        "pair": np.stack([number, -number], -1).astype(np.int32),
        "triple": np.stack([number] * 3, -1).astype(np.int16),
        "nothing": np.empty((count, environments, 0), np.float32),
    }


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    environments=st.integers(1, 4),
    window=st.integers(1, 20),
    scattered=st.booleans(),
)
def test_rows_are_found_at_their_addresses(counts: list[int], environments: int, window: int, scattered: bool) -> None:
    store = Store(schema_of(rows_of(0, 1, environments)), 4, Memory())
    if scattered:  # every other chunk stays taken
        ids = store.allocate(200)
        store.drop(ids[::2].copy())
    store.fit(window)
    taken = store.used
    streams = Streams(store, environments, 5)
    merged = 0
    for count in counts:
        first = streams.rows
        pieces = streams.reserve(count)
        merged += sum(piece.layers > 1 for piece in pieces)
        assert [piece.rows.start for piece in pieces[1:]] == [piece.rows.stop for piece in pieces[:-1]]
        write(store, pieces, rows_of(first, count, environments))
        streams.written = streams.rows
        row = np.repeat(np.arange(max(streams.first_row, streams.rows - window), streams.rows), environments)
        environment = np.tile(np.arange(environments), len(row) // environments)
        addresses = streams.addresses(environment, row)
        expected = row * 100 + environment
        assert (store.columns["number"][addresses] == expected).all()
        assert (store.columns["pair"][addresses] == np.stack([expected, -expected], -1)).all()
        assert (store.columns["triple"][addresses] == np.stack([expected] * 3, -1).astype(np.int16)).all()
        streams.forget(window)
        assert len(streams.layers) <= window // store.length + 2
    assert merged or max(counts) < 2 * store.length + store.length - 1
    streams.close()
    assert store.used == taken
