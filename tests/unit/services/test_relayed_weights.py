"""Weights on other machines than the store's: brought once for all readers, as soon as one has what came before."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.services.weights import RelayedWeights, SharedWeights, WeightStore
from shoal.versions import NONE

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not hasattr(os, "memfd_create"), reason="shares no memory"
)


class Counting(WeightStore):
    """A store that counts what crosses the network."""

    crossed = 0

    def wait(self, than: int = NONE, timeout: float | None = None) -> Any:
        found = super().wait(than, timeout)
        self.crossed += found is not None
        return found


@pytest.fixture
def boards() -> Iterator[tuple[int, int]]:
    """Of the store's machine, and of another one."""
    fds = os.memfd_create("here"), os.memfd_create("there")
    yield fds
    for fd in fds:
        os.close(fd)


def weights(value: float) -> dict[str, Any]:
    return {"w": np.full((64, 8), value, np.float32)}


def test_a_version_crosses_once_for_all_readers_of_a_machine(boards: tuple[int, int]) -> None:
    store = Counting()
    store.share(boards[0])
    learner = SharedWeights(store, boards[0])
    relay, readers = RelayedWeights(store, boards[1]), [RelayedWeights(store, boards[1]) for _ in range(8)]
    for version in (1, 2, 3):
        learner.publish(weights(version), version)
        relay.bring(1.0)
        for reader in readers:
            found = reader.newer(version - 1)
            assert found is not None
            assert found[0] == version
            assert (found[1]["w"] == version).all()
            assert reader.newer(version) is None
    assert store.crossed == 3


def test_nothing_is_brought_before_somebody_has_the_last(boards: tuple[int, int]) -> None:
    store = Counting()
    store.share(boards[0])
    learner, relay, reader = SharedWeights(store, boards[0]), *(RelayedWeights(store, boards[1]) for _ in range(2))
    for version in range(1, 5):
        learner.publish(weights(version), version)
        relay.bring(0.1)
    assert store.crossed == 1
    assert reader.wait(NONE, 1.0) is not None
    relay.bring(0.1)
    found = reader.newer(1)
    assert found is not None
    assert found[0] == 4, "the newest, and not one after the other"
    assert store.crossed == 2


def test_who_publishes_from_afar_is_read_everywhere(boards: tuple[int, int]) -> None:
    store = WeightStore()
    store.share(boards[0])
    afar, here = RelayedWeights(store, boards[1]), SharedWeights(store, boards[0])
    afar.publish(weights(1.0), 1)
    assert here.newer(NONE) is not None
    assert store.version() == afar.announced == 1
    assert afar.compare_and_set(weights(2.0), 1, 2)
    assert not afar.compare_and_set(weights(2.0), 1, 3)
    assert here.version() == 2


def test_a_reader_whose_relay_is_gone_asks_the_store(boards: tuple[int, int]) -> None:
    store = WeightStore()
    store.share(boards[0])
    SharedWeights(store, boards[0]).publish(weights(1.0), 1)
    found = RelayedWeights(store, boards[1]).wait(NONE, 5.0)
    assert found is not None
    assert found[0] == 1
