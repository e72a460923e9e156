"""Nodes live, end, fail and come back in the same way on every runtime."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from probe_nodes import Asker, Caller, Dependent, Essential, Faulty, Finite, Leaver, Panics, Service, Visitor
from starting import Start, wait_until

from shoal.program import NodeDied, Program, Resources, node_seed
from shoal.runtime import RunFailed, Supervisor, launch
from shoal.runtime.restarts import Loss


def test_a_node_whose_step_returns_false_is_finished_and_still_answers(start: Start) -> None:
    program = Program()
    service = program.add("service", Service)
    finite = program.add("finite", Finite, 5)
    run = start(program)
    assert not run.finished(service)
    wait_until(run, lambda: run.finished(finite))
    assert run.client(finite).left() == 0
    assert run.client(service).echo("here") == "here"
    assert not run.finished(service)


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="processes can be named on Linux only")
def test_processes_carry_the_names_of_their_nodes() -> None:
    program = Program()
    nodes = [program.add(name, Service) for name in ("service", "a name of more than 15 letters")]
    with launch(program, "local") as run:
        for node in nodes:
            run.client(node).echo("here")
        assert {name: psutil.Process(pid).name() for name, pid in run.pids().items()} == {
            "service": "service",
            "a name of more than 15 letters": "a name of more ",
        }


def test_a_restartable_node_that_raises_is_started_again_with_another_seed(start: Start) -> None:
    losses: list[Loss] = []
    program = Program()
    service = program.add("service", Service)
    program.add("faulty", Faulty, service, lives=2)
    run = start(program, seed=3, supervisor=Supervisor(on_loss=losses.append))
    log = run.client(service).log
    wait_until(run, lambda: len(log()) == 3)
    assert log() == [("faulty", life, node_seed(3, "faulty", life)) for life in range(3)]
    assert run.supervisor.restarts["faulty"] == 2
    assert [(loss.node, loss.restarts) for loss in losses] == [("faulty", 1), ("faulty", 2)]
    assert "ValueError: fault of life 0" in losses[0].reason
    assert "in _fail" in (losses[0].traceback or "")
    assert losses[1].traceback is None, "the same traceback is shown once"


def test_a_node_that_raises_while_it_is_built_is_started_again_too(start_quickly: Start) -> None:
    program = Program()
    service = program.add("service", Service)
    program.add("faulty", Faulty, service, lives=1, where="build")
    run = start_quickly(program)
    wait_until(run, lambda: len(run.client(service).log()) == 2)
    assert run.supervisor.restarts["faulty"] == 1


def test_callers_of_a_restarted_node_reach_the_newcomer(start: Start) -> None:
    program = Program()
    service = program.add("service", Service)
    faulty = program.add("faulty", Faulty, service, lives=1)
    visitor = program.add("visitor", Visitor, faulty)
    run = start(program)
    wait_until(run, lambda: run.supervisor.restarts["faulty"] == 1)
    wait_until(run, lambda: run.client(visitor).visit() == 1)
    assert run.client(faulty).life() == 1


def test_a_node_that_fails_too_often_in_a_row_ends_the_run_with_its_traceback(start: Start) -> None:
    program = Program()
    service = program.add("service", Service)
    program.add("faulty", Faulty, service, lives=100)
    run = start(program, supervisor=Supervisor(max_failures=2))
    with pytest.raises(RunFailed, match="node 'faulty' raised ValueError: fault of life 2, 3 times in a row") as caught:
        wait_until(run, lambda: False)
    assert caught.value.node == "faulty"
    assert "in _fail" in (caught.value.traceback or "")


@pytest.mark.parametrize("where", ["build", "step"])
def test_the_run_ends_when_a_node_it_needs_raises(start: Start, where: str) -> None:
    program = Program()
    service = program.add("service", Service)
    program.add("essential", Essential, service, lives=1, where=where)
    run = start(program)
    with pytest.raises(RunFailed, match=r"node 'essential' raised ValueError.*cannot go on without it") as caught:
        wait_until(run, lambda: False)
    assert "in _fail" in (caught.value.traceback or "")


def test_a_node_that_leaves_by_sys_exit_is_lost_like_one_that_raises(start: Start) -> None:
    program = Program()
    program.add("leaver", Leaver)
    run = start(program)
    with pytest.raises(RunFailed, match=r"node 'leaver' raised SystemExit: 0; .*cannot go on without it") as caught:
        wait_until(run, lambda: False)
    assert "sys.exit(0)" in (caught.value.traceback or "")


def test_a_node_that_raises_what_is_no_exception_is_lost_like_any_other(start: Start) -> None:
    program = Program()
    program.add("panics", Panics)
    run = start(program)
    with pytest.raises(RunFailed, match=r"node 'panics' raised .*Panic: index out of bounds; .*cannot go on without"):
        wait_until(run, lambda: False)


def test_closing_wakes_blocked_nodes_and_lets_them_release_what_they_hold(start: Start, tmp_path: Path) -> None:
    program = Program()
    service = program.add("service", Service)
    traces = [tmp_path / f"trace{index}" for index in range(2)]
    for index, trace in enumerate(traces):
        program.add(f"dependent/{index}", Dependent, service, str(trace))
    run = start(program)
    run.wait(0.1)
    assert run.client(service).held(2)
    began = time.monotonic()
    run.close()
    assert time.monotonic() - began < 3.0
    assert [trace.exists() for trace in traces] == [True, True]


def test_closing_twice_is_harmless_and_a_run_can_be_left_by_an_exception(start_quickly: Start) -> None:
    program = Program()
    service = program.add("service", Service)
    run = start_quickly(program)
    with pytest.raises(KeyError), run:
        run.client(service).fail("out")
    run.close()


# ---- what only processes can suffer


def test_a_node_may_call_more_others_than_descriptors_fit_into_a_message() -> None:
    program = Program()
    services = [program.add(f"service/{index}", Service) for index in range(40)]
    asker = program.add("asker", Asker, services)
    with launch(program, "local") as run:
        assert run.client(asker).ask_all() == list(range(40))


def test_every_node_computes_with_the_threads_that_it_was_given(start_processes: Start) -> None:
    program = Program()
    learner, actor = program.add("learner", Service), program.add("actor", Service)
    program.place("learner", Resources(cpus=0.0, threads=2))
    run = start_processes(program)
    assert [run.client(node).threads() for node in (learner, actor)] == [2, 1]


def test_every_node_has_a_process_of_its_own_and_none_is_left(start_processes: Start) -> None:
    program = Program()
    service = program.add("service", Service)
    program.add("finite", Finite, 1)
    run = start_processes(program)
    pids = run.pids()
    assert pids["service"] == run.client(service).pid()
    assert len({*pids.values(), os.getpid()}) == 3
    run.close()
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids.values() if psutil.pid_exists(pid)], 5.0)
    assert not alive, gone


def test_a_killed_actor_comes_back_and_is_counted(start_processes: Start) -> None:
    losses: list[Loss] = []
    program = Program()
    service = program.add("service", Service)
    program.add("actor", Faulty, service, lives=0)
    run = start_processes(program, supervisor=Supervisor(on_loss=losses.append))
    log = run.client(service).log
    wait_until(run, lambda: len(log()) == 1)
    os.kill(run.pids()["actor"], signal.SIGKILL)
    wait_until(run, lambda: len(log()) == 2)
    assert [life for _, life, _ in log()] == [0, 1]
    assert run.supervisor.restarts["actor"] == 1
    assert "killed" in losses[0].reason


def test_calls_under_way_fail_when_the_callee_is_killed_and_later_ones_reach_the_newcomer(
    start_processes: Start,
) -> None:
    program = Program()
    service = program.add("service", Service)
    program.place("service", restart=True)
    run = start_processes(program)
    client = run.client(service)
    held = client.future.hold()
    assert client.held(1)
    os.kill(run.pids()["service"], signal.SIGKILL)
    with pytest.raises(NodeDied, match="'service'"):
        held.result()
    wait_until(run, lambda: run.supervisor.restarts["service"] == 1 and "service" in run.pids())
    assert client.who()["restarts"] == 1
    assert client.future.echo(1).result() == 1


def test_the_killed_service_is_named_and_not_those_who_called_it(start_processes: Start) -> None:
    program = Program()
    other = program.add("other", Service)
    service = program.add("service", Service)
    program.add("learner", Dependent, service)
    for index in range(2):
        program.add(f"caller/{index}", Caller, {"nested": [{"service": service}], "tuple": (0, other)})
    program.add("late", Dependent, service)
    run = start_processes(program)
    assert run.client(service).held(2)
    os.kill(run.pids()["service"], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"^node 'service' was killed[^;]*; the run cannot go on without it$") as caught:
        wait_until(run, lambda: False, 10.0)
    assert caught.value.node == "service"
    assert time.monotonic() - began < 10.0
