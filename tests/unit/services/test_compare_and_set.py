"""Compare-and-set on the weight service: of several writers that saw the same version, one wins."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import numpy as np
import pytest

from shoal.program import Handle, Program
from shoal.runtime import Run, launch
from shoal.services.weights import SharedWeights, WeightStore
from shoal.versions import NONE

TIMES, WRITERS = 50, 3


class Incrementer:
    """Adds one to a shared number `TIMES` times, whatever the others do."""

    def __init__(self, weights: WeightStore) -> None:
        self._weights = weights
        self._times = 0
        self._version, self._number = 0, np.zeros(1)
        weights.compare_and_set({"number": self._number}, NONE, self._version)  # the first to come starts at 0

    def step(self) -> bool:
        new = self._number + 1.0
        if self._weights.compare_and_set({"number": new}, self._version, self._version + 1):
            self._version, self._number = self._version + 1, new
            self._times += 1
        else:
            found = self._weights.newer(self._version)
            assert found is not None, "a refusal means that there is a newer version"
            self._version, self._number = found[0], found[1]["number"]
        return self._times < TIMES


def run_until_all_are_finished(run: Run) -> None:
    for _ in range(200):
        run.wait(0.05)
        if all(run.finished(Handle(f"writer/{index}")) for index in range(WRITERS)):
            return
    raise AssertionError("the writers did not finish")


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_no_increment_by_compare_and_set_is_lost(runtime: str) -> None:
    program = Program()
    weights = program.add("weights", WeightStore)
    for index in range(WRITERS):
        program.add(f"writer/{index}", Incrementer, weights)
    with launch(program, runtime) as run:
        run_until_all_are_finished(run)
        found = run.client(weights).newer(NONE)
    assert found is not None
    version, named = found
    assert version == TIMES * WRITERS
    assert named["number"].tolist() == [TIMES * WRITERS]


def test_a_version_that_has_passed_is_refused_and_changes_nothing() -> None:
    store = WeightStore()
    store.publish({"number": np.ones(1)}, 4)
    assert not store.compare_and_set({"number": np.zeros(1)}, 3, 5)
    assert store.version() == 4
    assert store.compare_and_set({"number": np.full(1, 2.0)}, 4, 5)
    found = store.newer(4)
    assert found is not None
    assert found[0] == 5
    assert found[1]["number"].tolist() == [2.0]


TRIALS, RIVALS, FLOATS = 40, 4, 1 << 18  # of 1 MB


def race(rank: int, descriptors: list[int], barrier: Any, won: Any) -> None:
    """In a process of its own: try to be the first on every memory, with values of its own."""
    mine = {"values": np.full(FLOATS, rank, np.float32)}
    for trial, descriptor in enumerate(descriptors):
        client = SharedWeights(WeightStore(), descriptor)
        barrier.wait()
        won[trial * RIVALS + rank] = client.compare_and_set(mine, NONE, rank)


def test_of_processes_that_set_the_first_weights_one_wins_and_nothing_is_torn() -> None:
    processes = multiprocessing.get_context("fork")
    descriptors = [os.memfd_create("weights") for _ in range(TRIALS)]
    barrier, won = processes.Barrier(RIVALS), processes.Array("b", TRIALS * RIVALS)
    rivals = [processes.Process(target=race, args=(rank, descriptors, barrier, won)) for rank in range(RIVALS)]
    try:
        for rival in rivals:
            rival.start()
        for rival in rivals:
            rival.join(60)
        for trial, descriptor in enumerate(descriptors):
            winners = [rank for rank in range(RIVALS) if won[trial * RIVALS + rank]]
            assert len(winners) == 1, f"trial {trial} was won by {winners}"
            found = SharedWeights(WeightStore(), descriptor).newer(NONE)
            assert found is not None
            assert found[0] == winners[0]
            assert (found[1]["values"] == winners[0]).all(), "torn"
    finally:
        for rival in rivals:
            rival.kill()
        for descriptor in descriptors:
            os.close(descriptor)


def test_threads_of_a_process_exclude_each_other_too() -> None:
    descriptor = os.memfd_create("weights")
    client, wins = SharedWeights(WeightStore(), descriptor), []
    client.publish({"values": np.zeros(FLOATS, np.float32)}, 0)

    def set_next(rank: int) -> None:
        own = SharedWeights(WeightStore(), descriptor)
        mine = {"values": np.full(FLOATS, rank, np.float32)}
        wins.extend((version, own.compare_and_set(mine, version, version + 1)) for version in range(20))

    threads = [threading.Thread(target=set_next, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert len([version for version, won in wins if won]) == len({version for version, won in wins if won})


def test_a_store_goes_on_from_its_state() -> None:
    store, other = WeightStore(), WeightStore()
    store.publish({"number": np.ones(1)}, 4)
    store.keep_snapshot("learner", {"updates": 7, "moments": np.ones(2)})
    other.load_state_dict(store.state_dict())
    assert other.version() == 4
    assert other.newer(3)[1]["number"].tolist() == [1.0]  # type: ignore[index]
    assert other.kept_snapshot("learner")["updates"] == 7
    store.keep_snapshot("learner", None)
    assert other.kept_snapshot("learner") is not None
