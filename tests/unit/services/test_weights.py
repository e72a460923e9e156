"""The weight service by itself: what it keeps is its own, and what readers get is whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shoal.services.weights import SharedWeights, WeightStore
from shoal.versions import NONE


def weights(value: float) -> dict[str, Any]:
    return {"w": np.full(3, value)}


def read_from(store: WeightStore | SharedWeights, than: int = NONE) -> tuple[int, list[float]]:
    found = store.newer(than)
    assert found is not None
    return found[0], found[1]["w"].tolist()


def test_what_was_published_is_the_stores_own() -> None:
    store, given = WeightStore(), weights(1.0)
    store.publish(given, 4)
    given["w"][:] = 9.0
    assert read_from(store, 3) == (4, [1.0] * 3)
    assert store.newer(4) is None
    assert (store.version(), WeightStore().version()) == (4, NONE)


def test_a_snapshot_is_the_stores_own() -> None:
    store, state = WeightStore(), {"updates": 3, "moments": [np.ones(2)]}
    assert store.kept_snapshot("learner") is None
    store.keep_snapshot("learner", state)
    state["moments"][0][:] = 7.0  # type: ignore[index]
    assert store.kept_snapshot("learner")["moments"][0].tolist() == [1.0, 1.0]


def test_announcements_that_overtake_each_other_leave_the_newest() -> None:
    store = WeightStore()
    for version in (3, 5, 4):
        store.announce(version)
    assert store.version() == 5
    assert store.reached(4, timeout=0.0)
    assert not store.reached(5, timeout=0.0)


@pytest.mark.parametrize(("expected", "set_"), [(3, False), (4, True), (5, False)])
def test_compare_and_set_takes_exactly_the_version_that_is_there(expected: int, set_: bool) -> None:
    store = WeightStore()
    store.publish(weights(1.0), 4)
    assert store.compare_and_set(weights(2.0), expected, 6) is set_
    assert store.version() == (6 if set_ else 4)


def test_a_stores_state_goes_on_elsewhere() -> None:
    store, again = WeightStore(), WeightStore()
    store.publish(weights(2.0), 4)
    store.keep_snapshot("learner", {"updates": 4})
    state = store.state_dict()
    state["weights"]["w"].flags.writeable = True
    again.load_state_dict(state)
    state["weights"]["w"][:] = 0.0
    assert (read_from(again), again.kept_snapshot("learner")) == ((4, [2.0] * 3), {"updates": 4})


@pytest.fixture
def shared() -> Iterator[SharedWeights]:
    fd = os.memfd_create("weights")
    yield SharedWeights(WeightStore(), fd)
    os.close(fd)


class Meanwhile(np.ndarray[Any, Any]):
    """An array during whose copying something happens."""

    happens: Any = None

    def copy(self, order: Any = "C") -> Any:
        found = np.array(self)
        if self.happens is not None:
            self.happens()
        return found


@pytest.mark.parametrize(("published", "read"), [(1, 1.0), (2, 3.0), (3, 4.0)])
def test_a_copy_that_may_have_been_written_over_is_made_again(
    shared: SharedWeights, published: int, read: float
) -> None:
    """Two versions later the writer fills the third buffer: only then is the first one in danger."""
    shared.publish(weights(1.0), 1)
    slot = shared._slots[0]["w"].view(Meanwhile)

    def publish() -> None:
        slot.happens = None
        for version in range(2, 2 + published):
            shared.publish(weights(float(version)), version)

    slot.happens = publish
    shared._slots[0]["w"] = slot
    assert read_from(shared) == (int(read), [read] * 3)


def test_weights_that_a_reader_has_are_not_news(shared: SharedWeights) -> None:
    assert shared.newer() is None
    shared.publish(weights(1.0), 4)
    assert read_from(shared, 3) == (4, [1.0] * 3)
    assert shared.newer(4) is None
    assert shared.newer(5) is None


def test_who_asks_for_newer_weights_waits_until_there_are_some() -> None:
    store = WeightStore()
    store.publish(weights(1.0), 5)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(store.reached, 5, 20.0)
        time.sleep(0.1)
        assert not asked.done()
        store.publish(weights(2.0), 6)
        assert asked.result(5.0) is True


class Listening(WeightStore):
    """Counts what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def announce(self, version: int) -> None:
        self.told.append(version)
        super().announce(version)


@pytest.fixture
def listening() -> Iterator[SharedWeights]:
    fd = os.memfd_create("weights")
    yield SharedWeights(Listening(), fd)
    os.close(fd)


def test_the_store_hears_of_the_first_version_and_then_only_where_somebody_waits(
    listening: SharedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.services.weights.ANNOUNCE_EVERY", 60.0)
    for version in range(1, 5):
        listening.publish(weights(1.0), version)
    assert (listening.store.told, listening.announced) == ([1], 1)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(listening.wait, 4, 20.0)
        time.sleep(0.05)
        assert not asked.done()
        listening.publish(weights(2.0), 5)
        version, _ = asked.result(5.0) or (NONE, {})
    listening.publish(weights(2.0), 6)
    assert (version, listening.store.told) == (5, [1, 5])
    assert listening.version() == 6, "what is in the memory, told or not"


def test_now_and_then_the_store_hears_of_a_version_though_nobody_waits(
    listening: SharedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.services.weights.ANNOUNCE_EVERY", 0.0)
    for version in range(1, 4):
        listening.publish(weights(1.0), version)
    assert listening.store.told == [1, 2, 3]


def test_who_was_not_told_looks_for_himself(listening: SharedWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.services.weights.ANNOUNCE_EVERY", 60.0)
    listening.publish(weights(1.0), 1)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(listening.wait, 1, 20.0)
        time.sleep(0.03)
        with listening._exclusively():
            listening._write(weights(2.0), 2)  # and the writer is lost before it says so
        version, _ = asked.result(5.0) or (NONE, {})
    assert (version, listening.store.told) == (2, [1])


def test_a_closed_store_ends_a_wait(shared: SharedWeights) -> None:
    shared.publish(weights(1.0), 1)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(shared.wait, 1)
        time.sleep(0.03)
        shared.store.close()
        assert asked.result(5.0) is None
