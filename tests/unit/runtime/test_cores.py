"""Threads that take turns share a core, and large copies may leave it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal import sync
from shoal.program import Program
from shoal.replay import Replay, Table
from shoal.runtime import cores, launch

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)


def kept() -> tuple[set[int], set[int], set[int]]:
    """Cores of a thread that was told to keep to one: then, while it has released a lock, and after."""
    cores.keep_to_one_core()
    sync.set_when_beside(lambda alone: cores.use_all_cores())
    condition = sync.Condition()
    before = os.sched_getaffinity(0)
    with condition:
        with condition.released():
            sync.work_beside_others(alone=False)
            meanwhile = os.sched_getaffinity(0)
        return before, meanwhile, os.sched_getaffinity(0)


def test_threads_share_one_core_until_they_have_released_the_lock() -> None:
    every = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        first, second = one.submit(kept).result(), other.submit(kept).result()
    assert first == second
    before, meanwhile, after = first
    assert len(before) == 1
    assert meanwhile == after == every == os.sched_getaffinity(0)


def test_a_served_replay_keeps_to_one_core() -> None:
    program = Program()
    replay = program.add("replay", Replay, [Table("items", 10)])
    with launch(program, "local") as run:
        run.client(replay).info()
        pid = run.pids()["replay"]
        allowed = {int(thread): len(os.sched_getaffinity(int(thread))) for thread in os.listdir(f"/proc/{pid}/task")}
        assert 1 in allowed.values()
        assert allowed[pid] > 1  # its main thread serves nobody


class Copying:
    """Serves in turns, and says how many cores a call has with the lock held, without it, and again with it."""

    in_turns = True

    def __init__(self) -> None:
        self.lock = sync.Condition()

    def counts(self) -> list[int]:
        with self.lock:
            found = [len(os.sched_getaffinity(0))]
            with self.lock.released():
                sync.work_beside_others(alone=False)
                found.append(len(os.sched_getaffinity(0)))
            return [*found, len(os.sched_getaffinity(0))]


def test_a_served_call_that_lets_go_of_its_lock_has_every_core() -> None:
    program = Program()
    copying = program.add("copying", Copying)
    with launch(program, "local") as run:
        every = len(os.sched_getaffinity(0))
        assert run.client(copying).counts() == [1, every, every]
