"""Samples travel with their small arrays packed into one, and arrive as they were."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.replay.messages import Sample, Window

KINDS = ["?", "u1", "i2", "f2", "i4", "f4", "i8", "f8", "c16", ">f4", "U3"]


def sample_of(count: int, arrays: dict[str, Any]) -> Sample:
    random = np.random.default_rng(count)
    return Sample(
        arrays,
        keys=random.integers(1, 1 << 60, count),
        probabilities=random.random(count),
        priorities=random.random(count),
        times_sampled=random.integers(0, 9, count).astype(np.int32),
        table_size=1000,
        mass=3.5,
        layout="batch",
        timed=frozenset(arrays),
    )


def check_same(sent: Sample, received: Sample) -> None:
    assert list(sent.arrays) == list(received.arrays)
    pairs = [(sent.arrays[name], received.arrays[name]) for name in sent.arrays]
    pairs += [(sent.keys, received.keys), (sent.probabilities, received.probabilities)]
    pairs += [(sent.priorities, received.priorities), (sent.times_sampled, received.times_sampled)]
    for one, other in pairs:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
        assert other.flags.writeable
        assert other.flags.aligned
    for name in ("table_size", "mass", "layout", "timed", "windows"):
        assert getattr(sent, name) == getattr(received, name)


@given(
    count=st.integers(0, 40),
    columns=st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=3)), max_size=6),
    protocol=st.sampled_from([2, 4, 5, "out of band", "copy"]),
)
def test_every_kind_of_column_arrives(count: int, columns: list[tuple[str, list[int]]], protocol: Any) -> None:
    random = np.random.default_rng(len(columns))
    arrays = {
        f"column {index}": (random.random((count, *shape)) * 100).astype(kind)
        for index, (kind, shape) in enumerate(columns)
    }
    sent = sample_of(count, arrays)
    if protocol == "copy":
        check_same(sent, copy.deepcopy(sent))
        return
    if protocol != "out of band":
        check_same(sent, pickle.loads(pickle.dumps(sent, protocol)))
        return
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    copies = [bytearray(buffer.raw()) for buffer in buffers]
    check_same(sent, pickle.loads(body, buffers=copies))


def test_large_columns_stay_by_themselves_and_windows_are_formed_again() -> None:
    frames = np.random.default_rng(0).integers(0, 255, (8, 5, 84, 84), np.uint8)
    sent = sample_of(8, {"frames": frames, "keys": np.arange(8), "turned": np.ones((4, 8)).T})
    sent.windows = {"observation": Window("frames", 1, 0, 4), "next_observation": Window("frames", 1, 1, 5)}
    assert sent.data["observation"].shape == (8, 4, 84, 84)  # a cached one does not travel
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    assert sorted(buffer.raw().nbytes for buffer in buffers)[-1] == frames.nbytes
    assert len(body) < 2_000
    received = pickle.loads(body, buffers=buffers)
    np.testing.assert_array_equal(received.data["next_observation"], frames[:, 1:])
    np.testing.assert_array_equal(received.arrays["keys"], np.arange(8))
    np.testing.assert_array_equal(received.arrays["turned"], np.ones((8, 4)))


@pytest.mark.parametrize("count", [1, 512])
def test_few_buffers_travel(count: int) -> None:
    sent = sample_of(count, {"observation": np.ones((count, 4), np.float32), "reward": np.ones(count, np.float32)})
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1
