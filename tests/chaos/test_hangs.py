"""Nodes that live and do nothing are found and replaced; what environments have started ends with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from shoal.program import Handle, NodeDied, Program, current
from shoal.runtime import Run, Supervisor, launch
from shoal.runtime.restarts import Hang

SLEEPING = ["sleep", "1000"]


class Counter:
    """A service that counts, and holds up who asks it to."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> int:
        self._count += 1
        return self._count

    def hold(self, seconds: float) -> None:
        time.sleep(seconds)


class Stepper:
    """Counts its steps; in its first life the third one never ends."""

    restart = True

    def __init__(self, counter: Counter, *, hangs: bool = False, waits: float = 0.0) -> None:
        self._counter, self._hangs, self._waits = counter, hangs and current().restarts == 0, waits
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._hangs and self._steps == 3:
            time.sleep(1000.0)
        if self._waits:
            self._counter.hold(self._waits)
        self._counter.add()
        time.sleep(0.05)

    def life(self) -> int:
        return current().restarts


def program(**options: Any) -> tuple[Program, Any]:
    described = Program()
    counter = described.add("counter", Counter)
    return described, described.add("stepper", Stepper, counter, **options)


def wait_for(run: Run, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        run.wait(0.1)


def stop(pid: int) -> None:
    """Stop a process; its threads may go on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_a_step_that_never_ends_is_told_and_the_node_replaced() -> None:
    hangs: list[Hang] = []
    described, stepper = program(hangs=True)
    with launch(described, "local", supervisor=Supervisor(hang_seconds=3.0, on_hang=hangs.append)) as run:
        wait_for(run, lambda: bool(hangs))
        wait_for(run, lambda: run.supervisor.restarts["stepper"] == 1 and "stepper" in run.pids())
        assert run.client(stepper).life() == 1
    assert [(hang.node, hang.replaced) for hang in hangs] == [("stepper", True)]
    assert "has not come back from its step" in hangs[0].reason


def test_a_stopped_process_is_told_and_replaced() -> None:
    hangs: list[Hang] = []
    described, stepper = program()
    with launch(described, "local", supervisor=Supervisor(hang_seconds=3.0, on_hang=hangs.append)) as run:
        wait_for(run, lambda: run.client(Handle("counter")).add() > 5)
        old = run.pids()["stepper"]
        stop(old)
        wait_for(run, lambda: run.pids().get("stepper", old) != old)
        assert run.client(stepper).life() == 1
    assert [hang.node for hang in hangs] == ["stepper"]
    assert "no sign of life" in hangs[0].reason


def test_a_stopped_service_is_replaced_while_the_driver_itself_waits_for_it() -> None:
    described = Program()
    counter = described.add("counter", Counter)
    described.place("counter", restart=True)
    with launch(described, "local", supervisor=Supervisor(hang_seconds=3.0)) as run:
        assert run.client(counter).add() == 1
        run.wait(2.0)
        old = run.pids()["counter"]
        stop(old)
        with pytest.raises(NodeDied):
            run.client(counter).add()
        wait_for(run, lambda: run.pids().get("counter", old) != old)
        assert run.client(counter).add() == 1, "the newcomer counts anew"


def test_who_waits_for_another_node_does_not_hang() -> None:
    hangs: list[Hang] = []
    described, _ = program(waits=5.0)
    with launch(described, "local", supervisor=Supervisor(hang_seconds=2.0, on_hang=hangs.append)) as run:
        run.wait(8.0)
    assert not hangs


class Spawning:
    """As an environment that starts programs of its own, one of them out of its process group."""

    restart = True

    def __init__(self) -> None:
        self._pids = [subprocess.Popen(SLEEPING, start_new_session=own).pid for own in (False, True)]

    def pids(self) -> list[int]:
        return self._pids

    def step(self) -> None:
        time.sleep(0.05)


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(found, timeout=seconds)[1]


def test_processes_of_an_environment_end_with_its_node_and_with_the_run() -> None:
    described = Program()
    spawning = described.add("spawning", Spawning)
    with launch(described, "local") as run:
        first = run.client(spawning).pids()
        old = run.pids()["spawning"]
        os.kill(old, signal.SIGKILL)
        wait_for(run, lambda: run.pids().get("spawning", old) != old)
        assert gone(first[:1]), "of a lost node, those of its group"
        second = run.client(spawning).pids()
        assert all(map(psutil.pid_exists, second))
    assert gone(first + second)


RUN = """
import sys, time
sys.path[:0] = {path!r}
from test_hangs import Spawning
from shoal.program import Program
from shoal.runtime import launch
if __name__ == "__main__":
    program = Program()
    spawning = program.add("spawning", Spawning)
    with launch(program, "local") as run:
        print(*run.client(spawning).pids(), flush=True)
        run.wait(1000.0)
"""


def test_processes_of_an_environment_end_when_the_driver_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format(path=sys.path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait()
    assert gone(pids)


@pytest.mark.slow
def test_a_closed_lid_is_no_hang() -> None:
    """Everything stands still for longer than a hang may last, and goes on."""
    code = RUN.replace("run.wait(1000.0)", "run.wait(60.0)").replace(
        'launch(program, "local")',
        'launch(program, "local", supervisor=Supervisor(hang_seconds=3.0, on_hang=lambda hang: print(hang)))',
    )
    code = code.replace("import launch", "import Supervisor, launch")
    process = subprocess.Popen([sys.executable, "-c", code.format(path=sys.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == 2
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    time.sleep(3.0)
    for member in family:
        member.suspend()
    time.sleep(10.0)
    for member in family[::-1]:
        member.resume()
    assert process.stdout.read() == ""
    assert process.wait(60.0) == 0
