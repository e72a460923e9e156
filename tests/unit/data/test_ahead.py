"""Reading ahead: only where a dataset does not fit, and without a thread that stays."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from shoal.data import Dataset, DatasetWriter, Items, ahead, episode
from shoal.replay import n_step


def test_items_are_asked_for_and_the_thread_ends_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DatasetWriter(tmp_path / "data", spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)) as writer:
        writer.append(episode(np.zeros((500, 3)), np.zeros(499, int), np.zeros(499), terminated=True))
    data = Dataset(tmp_path / "data")
    assert not ahead.ReadAhead.helps(data)
    monkeypatch.setattr(ahead, "memory", lambda: data.nbytes)
    assert ahead.ReadAhead.helps(data)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(ahead.os, "posix_fadvise", lambda file, begin, count, what: asked.append((begin, count)))
    reader = ahead.ReadAhead(data)
    items = Items(data, n_step(1, 0.9))
    reader.ask(items.place(np.array([400, 0, 498])))
    reader._threads.shutdown(wait=True)
    row = data.record.itemsize
    assert len(asked) == 3
    for (begin, count), item in zip(asked, (0, 400, 498)):
        assert begin <= item * row
        assert begin + count >= (item + 2) * row
    del reader
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shoal-read-ahead")]


def test_memory_is_a_number_of_bytes() -> None:
    assert 1 << 20 < ahead.memory() < 1 << 50
