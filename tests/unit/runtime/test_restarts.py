"""The supervisor's rules: who is started again, after how long, and when the run ends."""

from __future__ import annotations

import pytest

from shoal.program import Node
from shoal.runtime.restarts import ERRORS, FIRST_BACKOFF, HEALTHY, LONGEST_BACKOFF, Loss, RunFailed, Supervisor

ACTOR = Node("actor/0", object, restart=True)
LEARNER = Node("learner", object)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_node_without_restart_ends_the_run_in_one_sentence() -> None:
    with pytest.raises(RunFailed, match=r"^node 'learner' was killed; the run cannot go on without it$") as caught:
        Supervisor().lost(LEARNER, "was killed")
    assert caught.value.node == "learner"


def test_waiting_times_double_up_to_a_limit() -> None:
    supervisor = Supervisor(max_failures=100, clock=Clock())
    waits = []
    for _ in range(10):
        supervisor.started("actor/0")
        waits.append(supervisor.lost(ACTOR, "was killed"))
    assert waits[:3] == [FIRST_BACKOFF, 2 * FIRST_BACKOFF, 4 * FIRST_BACKOFF]
    assert max(waits) == waits[-1] == LONGEST_BACKOFF


def test_failures_in_a_row_end_the_run_and_old_ones_are_forgiven() -> None:
    clock = Clock()
    supervisor = Supervisor(max_failures=2, clock=clock)
    for _ in range(5):
        supervisor.started("actor/0")
        clock.now += HEALTHY
        supervisor.lost(ACTOR, "was killed")
    assert supervisor.restarts["actor/0"] == 5
    supervisor.started("actor/0")
    supervisor.lost(ACTOR, "was killed")
    supervisor.started("actor/0")
    with pytest.raises(RunFailed, match="node 'actor/0' was killed, 3 times in a row; giving up"):
        supervisor.lost(ACTOR, "was killed")


def test_who_raises_again_and_again_ends_the_run_though_it_completes_something_in_between() -> None:
    clock = Clock()
    supervisor = Supervisor(max_failures=2, clock=clock)
    for life in range(3 * ERRORS * 2):  # kills from outside, and errors of long lives, are no such thing
        supervisor.started("actor/0")
        clock.now += HEALTHY if life % 2 else 1.0
        supervisor.lost(ACTOR, "failed: no map", progress=1, raised=bool(life % 2))
    for _ in range(ERRORS * 2 - 1):
        supervisor.started("actor/0")
        clock.now += 1.0
        supervisor.lost(ACTOR, "failed: no map", progress=1, raised=True)
    supervisor.started("actor/0")
    with pytest.raises(RunFailed, match="failed: no map, 9 times, each within 10 s of its start; giving up"):
        supervisor.lost(ACTOR, "failed: no map", progress=1, raised=True)


def test_failures_are_counted_for_each_node() -> None:
    supervisor = Supervisor(max_failures=1, clock=Clock())
    for name in ("actor/0", "actor/1", "actor/2"):
        supervisor.started(name)
        supervisor.lost(Node(name, object, restart=True), "was killed")
    assert supervisor.restarts.total() == 3


def test_every_loss_is_told_and_every_traceback_once() -> None:
    losses: list[Loss] = []
    supervisor = Supervisor(max_failures=9, on_loss=losses.append, clock=Clock())
    first = 'Traceback\n  File "env.py", line 3, in step\nValueError: seed 1'
    same = 'Traceback\n  File "env.py", line 3, in step\nValueError: seed 2'
    other = 'Traceback\n  File "env.py", line 9, in reset\nValueError: seed 1'
    for text in (first, same, other):
        supervisor.lost(ACTOR, "raised ValueError", text)
    assert [loss.traceback for loss in losses] == [first, None, other]
    assert [loss.restarts for loss in losses] == [1, 2, 3]


def test_who_fails_because_another_node_was_lost_is_not_blamed() -> None:
    losses: list[Loss] = []
    supervisor = Supervisor(max_failures=0, on_loss=losses.append, clock=Clock())
    wait = supervisor.lost(ACTOR, "raised NodeDied", "Traceback", secondary=True)
    assert wait == FIRST_BACKOFF
    assert losses == []
