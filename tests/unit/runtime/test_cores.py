"""Threads that take turns share a core, and large copies may leave it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal import sync
from shoal.program import Program
from shoal.replay import Replay, Table
from shoal.runtime import launch

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)


def kept() -> tuple[set[int], set[int], set[int]]:
    """Cores of a thread that was told to keep to one: then, while it has released a lock, and after."""
    sync.keep_to_one_core()
    condition = sync.Condition()
    before = os.sched_getaffinity(0)
    with condition:
        with condition.released():
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
        cores = {int(thread): len(os.sched_getaffinity(int(thread))) for thread in os.listdir(f"/proc/{pid}/task")}
        assert 1 in cores.values()
        assert cores[pid] > 1  # its main thread serves nobody
