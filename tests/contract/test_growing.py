"""A running program takes nodes and gives them up, in the same way on every runtime."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest
from growing_nodes import Board, Deaf, Held, Parent, Worker
from starting import Start, wait_until

from shoal.program import Program, node_seed
from shoal.runtime import Supervisor, launch, supervision
from shoal.runtime.restarts import Loss


def program_of(count: int, worker: Any = Worker) -> tuple[Program, Board]:
    program = Program()
    board = program.add("board", Board)
    program.group("workers").add_alike("worker", count, worker, board)
    return program, board


def test_nodes_come_and_go_and_all_know_how_many_there_are(start: Start) -> None:
    losses: list[Loss] = []
    program, board = program_of(1)
    run = start(program, seed=5, supervisor=Supervisor(on_loss=losses.append))
    said = run.client(board).said

    def signed(name: str, life: int, total: int) -> bool:
        return any(sign[0] == name and sign[1] == life and sign[4] == total for sign in said()["signs"])

    wait_until(run, lambda: signed("worker/0", 0, 1))
    for _ in range(2):
        run.add(program.next_member("workers"))
    wait_until(run, lambda: all(signed(f"worker/{index}", 0, 3) for index in range(3)))
    assert {(sign[0], sign[3]) for sign in said()["signs"] if sign[4] == 3} == {
        (f"worker/{index}", index) for index in range(3)
    }
    run.remove("worker/1")
    assert "worker/1" not in program.nodes
    wait_until(run, lambda: said()["forgotten"] == ["worker/1"])
    assert said()["lefts"] == ["worker/1"]
    wait_until(run, lambda: signed("worker/2", 0, 2))
    assert said()["totals"][-1]["workers"] == 2
    run.add(program.next_member("workers"))  # under the name that is free, in a new life
    wait_until(run, lambda: signed("worker/1", 1, 3))
    seeds = {sign[1]: sign[2] for sign in said()["signs"] if sign[0] == "worker/1"}
    assert seeds == {life: node_seed(5, "worker/1", life) for life in (0, 1)}
    assert losses == []
    assert sum(run.supervisor.restarts.values()) == 0


def test_who_is_held_up_by_others_leaves_too(start_quickly: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LEAVING", 0.5)
    program, board = program_of(2, Held)
    run = start_quickly(program)
    said = run.client(board).said
    wait_until(run, lambda: len({sign[0] for sign in said()["signs"]}) == 2)
    run.remove("worker/0")
    wait_until(run, lambda: said()["forgotten"] == ["worker/0"])
    run.add(program.next_member("workers"))
    wait_until(run, lambda: any(sign[:2] == ("worker/0", 1) for sign in said()["signs"]))


def test_who_does_not_hear_that_it_should_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LEAVING", 0.3)
    monkeypatch.setattr(supervision, "STOPPING", 0.5)
    program, board = program_of(1, Deaf)
    with launch(program, "local") as run:
        said = run.client(board).said
        wait_until(run, lambda: bool(said()["signs"]))
        pid = run.pids()["worker/0"]
        run.remove("worker/0")
        wait_until(run, lambda: said()["forgotten"] == ["worker/0"])
        assert pid not in run.pids().values()


def test_a_node_that_is_killed_together_with_the_zygote_is_missed_at_once() -> None:
    """A process of its own holds its streams open, and the one that would have killed that is gone."""
    losses: list[Loss] = []
    program, board = program_of(2, Parent)
    with launch(program, "local", supervisor=Supervisor(on_loss=losses.append)) as run:
        said = run.client(board).said
        wait_until(run, lambda: len({sign[0] for sign in said()["signs"]}) == 2)
        victim = run.pids()["worker/0"]
        for pid in (psutil.Process(victim).ppid(), victim):
            os.kill(pid, signal.SIGKILL)
        wait_until(run, lambda: "worker/0" in [loss.node for loss in losses], seconds=5.0)
        wait_until(run, lambda: any(sign[:2] == ("worker/0", 1) for sign in said()["signs"]))


def test_a_name_can_be_added_again_before_its_node_is_gone(two_runtimes: Start) -> None:
    program, board = program_of(1)
    run = two_runtimes(program)
    said = run.client(board).said
    wait_until(run, lambda: bool(said()["signs"]))
    run.remove("worker/0")
    with pytest.raises(ValueError, match="no group 'workers' whose members"):
        program.next_member("workers")  # there is nobody left to make it like
    program, board = program_of(2)
    run = two_runtimes(program)
    said = run.client(board).said
    wait_until(run, lambda: len({sign[0] for sign in said()["signs"]}) == 2)
    run.remove("worker/0")
    run.add(program.next_member("workers"))
    wait_until(run, lambda: any(sign[:2] == ("worker/0", 1) for sign in said()["signs"]))
    assert said()["forgotten"] == ["worker/0"]


def test_a_node_that_others_call_cannot_leave(two_runtimes: Start) -> None:
    program, _ = program_of(1)
    run = two_runtimes(program)
    with pytest.raises(ValueError, match="node 'board' cannot leave: worker/0 would call it"):
        run.remove("board")
    with pytest.raises(ValueError, match="the program has no node 'worker/7'"):
        run.remove("worker/7")
    assert set(program.nodes) == {"board", "worker/0"}


def test_nothing_is_left_of_those_who_have_left() -> None:
    program, board = program_of(1)
    with launch(program, "local") as run:
        said = run.client(board).said
        wait_until(run, lambda: bool(said()["signs"]))

        def open_files(pid: int) -> int:
            return len(os.listdir(f"/proc/{pid}/fd"))

        def grow_and_shrink() -> None:
            before = len(said()["forgotten"])
            for _ in range(3):
                run.add(program.next_member("workers"))
            wait_until(run, lambda: {sign[0] for sign in said()["signs"][-20:]} >= {f"worker/{i}" for i in range(4)})
            for index in (1, 2, 3):
                run.remove(f"worker/{index}")
            wait_until(run, lambda: len(said()["forgotten"]) == before + 3)

        grow_and_shrink()
        service = run.pids()["board"]
        counted = open_files(os.getpid()), open_files(service)
        for _ in range(3):
            grow_and_shrink()
        assert (open_files(os.getpid()), open_files(service)) <= counted
        assert set(run.pids()) == {"board", "worker/0"}
