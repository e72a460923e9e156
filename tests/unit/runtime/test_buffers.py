"""Memory that is used again: never while somebody still looks at it, always once nobody does."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import buffers
from shoal.buffers import SMALL, Arena


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    arena = Arena()
    first = arena.empty((100_000,), np.float32)
    place = address(first)
    view = first.reshape(100, 1000)[3:, ::2].T
    del first
    gc.collect()
    other = arena.empty((100_000,), np.float32)
    assert address(other) != place, "a view is still in use"
    del view
    assert address(arena.empty((100_000,), np.float32)) == place


def test_a_thousand_allocations_reserve_no_more_than_a_few() -> None:
    arena = Arena()
    for _ in range(1000):
        arena.empty((50_000,), np.float64)[:] = 1.0
    assert arena.reserved <= 1 << 21


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(SMALL, 1 << 18), st.booleans()), max_size=40))
def test_blocks_in_use_never_overlap(requests: list[tuple[int, bool]]) -> None:
    arena = Arena()
    kept: list[np.ndarray[Any, Any]] = []
    for size, keep in requests:
        array = arena.empty((size,), np.uint8)
        assert address(array) % 64 == 0
        if keep:
            kept.append(array)
    spans = sorted((address(array), array.nbytes) for array in kept)
    for (start, size), (following, _) in itertools.pairwise(spans):
        assert start + size <= following


def test_beyond_the_limit_arrays_are_plain() -> None:
    arena = Arena(limit=1 << 21)
    arrays = [arena.empty((1 << 20,), np.uint8) for _ in range(4)]
    assert arena.reserved <= 1 << 21
    assert all(array.shape == (1 << 20,) for array in arrays)
    assert arena.block(1 << 22) is None


def test_a_place_is_known_by_its_address() -> None:
    arena = Arena()
    array = arena.empty((100_000,), np.uint8)
    place = arena.locate(address(array), array.nbytes)
    assert place is not None
    segment, offset = place
    array[:] = 7
    assert (arena.segments[segment].bytes[offset : offset + array.nbytes] == 7).all()
    assert arena.locate(address(np.empty(10)), 80) is None


def test_within_a_served_call_memory_comes_from_the_callers_arena() -> None:
    arena = Arena()
    with buffers.serving(arena):
        inside = buffers.empty((100_000,), np.uint8)
    outside = buffers.empty((100_000,), np.uint8)
    assert arena.locate(address(inside), inside.nbytes) is not None
    assert arena.locate(address(outside), outside.nbytes) is None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5, 7)])
def test_small_and_empty_arrays_have_their_shape(shape: tuple[int, ...]) -> None:
    array = buffers.empty(shape, np.int16)
    assert array.shape == shape
    assert array.dtype == np.int16
