"""Compare-and-set on the weight service: of several writers that saw the same version, one wins."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.program import Handle, Program
from shoal.runtime import Run, launch
from shoal.services.weights import WeightStore
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
