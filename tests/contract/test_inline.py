"""The inline runtime is reproducible, keeps virtual time, and finds deadlocks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from probe_nodes import Dependent, Finite, Service

from shoal import sync
from shoal.program import NodeDied, Program, current
from shoal.runtime.baton import Deadlock
from shoal.runtime.inline import InlineRun


class Producer:
    """Appends draws of its own generator at irregular times."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._random = np.random.default_rng(current().seed)

    def step(self) -> None:
        sync.sleep(float(self._random.uniform(0.0, 0.05)))
        self._service.future.append((current().name, sync.monotonic(), float(self._random.normal())))


class Doomed:
    """Raises while others wait in it."""

    restart = True

    def __init__(self) -> None:
        self._service = Service()

    def hold(self) -> None:
        self._service.hold()

    def step(self) -> None:
        if current().restarts == 0 and not self._service.held(1):
            return
        if current().restarts == 0:
            raise ValueError("doomed")
        sync.sleep(0.1)


class Holder:
    """Waits in a node and tells how that ended."""

    def __init__(self, other: Any, service: Any) -> None:
        self._other, self._service = other, service

    def step(self) -> bool:
        try:
            self._other.hold()
        except NodeDied as error:
            self._service.append(str(error))
        return False


def history(seed: int) -> list[Any]:
    program = Program()
    service = program.add("service", Service)
    for index in range(3):
        program.add(f"producer/{index}", Producer, service)
    with InlineRun(program, seed=seed) as run:
        run.wait(2.0)
        log: list[Any] = run.client(service).log()
        return log


def test_the_same_seed_gives_the_same_history_and_another_one_does_not() -> None:
    first, again, other = history(1), history(1), history(2)
    assert len(first) > 100
    assert first == again
    assert first != other


def test_time_is_virtual() -> None:
    program = Program()
    service = program.add("service", Service)
    with InlineRun(program) as run:
        began = time.monotonic()
        assert run.client(service).hold(timeout=3600.0)[0] is False
        run.wait(3600.0)
        assert run.baton.now >= 7200.0
        assert time.monotonic() - began < 5.0


def test_a_deadlock_names_who_waits_for_what() -> None:
    program = Program()
    service = program.add("service", Service)
    program.add("learner", Dependent, service)
    program.add("reader", Dependent, service)
    with InlineRun(program) as run:
        run.wait(0.1)
        with pytest.raises(Deadlock, match=r"learner waits for the release; reader waits for the release"):
            run.wait(0.1)
        run.client(service).release()


def test_a_driver_that_waits_for_ever_is_told_so() -> None:
    program = Program()
    service = program.add("service", Service)
    program.add("learner", Dependent, service)
    with InlineRun(program) as run:
        with pytest.raises(Deadlock, match=r"learner waits for the release; main waits for the release"):
            run.client(service).hold()
        with pytest.raises(Deadlock, match=r"main waits for service.hold"):
            run.client(service).future.hold().result()
        assert run.client(service).echo("still there") == "still there"


def test_nodes_that_wait_after_others_have_finished_are_no_deadlock() -> None:
    program = Program()
    service = program.add("service", Service)
    finite = program.add("finite", Finite, 3)
    program.add("learner", Dependent, service)
    with InlineRun(program) as run:
        for _ in range(5):
            run.wait(0.1)
        assert run.finished(finite)


def test_calls_under_way_fail_when_their_node_fails() -> None:
    program = Program()
    service = program.add("service", Service)
    doomed = program.add("doomed", Doomed)
    program.add("holder", Holder, doomed, service)
    with InlineRun(program) as run:
        run.wait(1.0)
        assert run.client(service).log() == ["node 'doomed' died before it answered"]
        assert run.supervisor.restarts["doomed"] == 1
