"""Weights are versioned, arrive whole, and cost nothing when there is nothing new, on every runtime."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from starting import Start, start_on, wait_until

from shoal.program import Program
from shoal.runtime import Run
from shoal.services.weights import WeightStore
from shoal.versions import NONE, make_version, number

SIZE = 200_000


def whole(value: int) -> dict[str, npt.NDArray[Any]]:
    """Weights that show whether they belong together: every number is the same."""
    return {"a": np.full(SIZE, value, np.float32), "b": np.full((3, 5), value, np.int64)}


def value_of(weights: dict[str, npt.NDArray[Any]]) -> int | None:
    """The value of whole weights, None when they are torn."""
    values = {float(part) for array in weights.values() for part in (array.min(), array.max())}
    return int(values.pop()) if len(values) == 1 else None


class Publisher:
    """Publishes as fast as it can."""

    def __init__(self, weights: Any) -> None:
        self._weights, self._count = weights, 0

    def step(self) -> None:
        self._count += 1
        self._weights.publish(whole(self._count), self._count)


class Reader:
    """Reads as fast as it can and remembers what it saw."""

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self._version, self._seen, self._torn, self._backwards = NONE, 0, 0, 0

    def step(self) -> None:
        found = self._weights.newer(self._version)
        if found is None:
            time.sleep(1e-4)
            return
        version, weights = found
        self._seen += 1
        self._torn += value_of(weights) != version
        self._backwards += version <= self._version
        self._version = version

    def seen(self) -> tuple[int, int, int]:
        return self._seen, self._torn, self._backwards


class Waiter:
    """Waits for weights, as an actor does at its start."""

    def __init__(self, weights: Any) -> None:
        self._found = weights.wait(NONE)

    def found(self) -> tuple[int, int | None]:
        return self._found[0], value_of(self._found[1])


def test_a_version_orders_restarts_before_updates() -> None:
    assert make_version(0, 5) < make_version(0, 6) < make_version(1, 0) < make_version(1, 1)
    assert number(make_version(3, 17)) == 17
    assert make_version(0, 0) > NONE


@pytest.fixture(scope="module")
def lab(runtime: str) -> Iterator[tuple[Run, list[Any], Any]]:
    """A run with a store for every question, since a store is new only once."""
    program = Program()
    stores = [program.add(f"weights/{index}", WeightStore) for index in range(4)]
    waiter = program.add("waiter", Waiter, stores[0])
    with start_on(runtime, program) as run:
        yield run, [lambda store=store: run.client(store) for store in stores], run.client(waiter)


def test_waiting_for_weights_ends_when_they_come_or_time_is_over(lab: tuple[Run, list[Any], Any]) -> None:
    run, stores, waiter = lab
    weights = stores[0]()
    run.wait(0.05)
    assert weights.wait(NONE, 0.05) is None
    weights.publish(whole(7), 7)
    assert waiter.found() == (7, 7)
    version, newest = weights.wait(NONE, 0.05)
    assert (version, value_of(newest)) == (7, 7)


def test_readers_get_what_is_newer_and_nothing_otherwise(lab: tuple[Run, list[Any], Any]) -> None:
    weights = lab[1][1]()
    assert weights.newer(NONE) is None
    assert weights.version() == NONE
    weights.publish(whole(1), 1)
    version, first = weights.newer(NONE)
    assert (version, value_of(first)) == (1, 1)
    assert weights.newer(1) is None
    weights.publish(whole(2), 2)
    weights.publish(whole(3), 3)
    version, newest = weights.newer(1)
    assert (version, value_of(newest)) == (3, 3)
    assert value_of(first) == 1, "what was read stays as it was"


def test_what_a_reader_gets_depends_on_what_it_asks_for_alone(lab: tuple[Run, list[Any], Any]) -> None:
    publisher, reader = lab[1][2](), lab[1][2]()
    publisher.publish(whole(1), 1)
    assert reader.newer(NONE)[0] == 1
    assert reader.newer(NONE)[0] == 1


def test_a_learner_that_was_started_again_is_believed_at_once(lab: tuple[Run, list[Any], Any]) -> None:
    weights = lab[1][3]()
    weights.publish(whole(50), make_version(0, 50))
    weights.publish(whole(0), make_version(1, 0))
    version, newest = weights.newer(make_version(0, 50))
    assert (version, value_of(newest)) == (make_version(1, 0), 0)


def test_no_reader_sees_torn_or_older_weights_under_a_fast_publisher(start: Start) -> None:
    program = Program()
    store = program.add("weights", WeightStore)
    program.add("publisher", Publisher, store)
    readers = [program.add(f"reader/{index}", Reader, store) for index in range(2)]
    run = start(program)
    clients = [run.client(reader) for reader in readers]
    wait_until(run, lambda: all(client.seen()[0] >= 100 for client in clients))
    for client in clients:
        _, torn, backwards = client.seen()
        assert torn == 0
        assert backwards == 0
