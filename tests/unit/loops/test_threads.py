"""A learner's threads follow the cores that others leave idle."""

from __future__ import annotations

from shoal.loops.threads import LONGEST_REST, PERIOD, REST, IdleCores, idle_seconds


class Machine:
    """Cores that are idle by a share, and updates that take a time by the number of threads."""

    def __init__(self, idle: float, updates: dict[int, float], most: int = 2) -> None:
        self.idle, self.updates, self.now, self.unused = idle, updates, 0.0, 0.0
        self.changes: list[int] = []
        self.cores = IdleCores(most, set_threads=self.changes.append, clock=lambda: self.now, idle=lambda: self.unused)

    def run(self, seconds: float) -> int:
        end = self.now + seconds
        while self.now < end:
            took = self.updates[self.cores.threads]
            self.now += took
            self.unused += self.idle * took
            self.cores.took(took)
        return self.cores.threads


def test_an_idle_core_is_used_where_it_makes_updates_faster() -> None:
    machine = Machine(idle=1.0, updates={1: 0.010, 2: 0.006})
    assert machine.run(3 * PERIOD) == 2
    assert machine.run(100.0) == 2
    assert machine.changes == [2]


def test_no_thread_is_added_while_others_use_the_cores() -> None:
    machine = Machine(idle=0.2, updates={1: 0.010, 2: 0.006})
    assert machine.run(100.0) == 1
    assert machine.changes == []


def test_a_thread_that_helps_little_goes_and_is_tried_again_ever_more_rarely() -> None:
    machine = Machine(idle=1.0, updates={1: 0.0100, 2: 0.0099})
    machine.run(1000.0)
    tried = machine.changes.count(2)
    assert machine.changes.count(1) in (tried, tried - 1)
    assert 3 <= tried <= 1000.0 / REST / 3


def test_a_thread_goes_when_somebody_else_comes_to_use_its_core() -> None:
    machine = Machine(idle=1.0, updates={1: 0.010, 2: 0.006})
    assert machine.run(20.0) == 2
    machine.updates[2], machine.idle = 0.050, 0.0
    assert machine.run(2 * PERIOD) == 1
    assert machine.run(LONGEST_REST) == 1


def test_threads_are_added_one_by_one_up_to_the_cores() -> None:
    machine = Machine(idle=3.0, updates={1: 0.012, 2: 0.007, 3: 0.005, 4: 0.004}, most=4)
    assert machine.run(10 * PERIOD) == 4
    assert machine.changes == [2, 3, 4]


def test_where_the_machine_does_not_tell_there_is_one_thread() -> None:
    changes: list[int] = []
    now = 0.0
    cores = IdleCores(2, set_threads=changes.append, clock=lambda: now, idle=lambda: None)
    for _ in range(100):
        now += 1.0
        cores.took(0.01)
    assert changes == []


def test_linux_tells_how_long_its_cores_were_idle() -> None:
    first = idle_seconds()
    assert first is not None
    assert first > 0.0
    assert (idle_seconds() or 0.0) >= first
