"""What only the Ray runtime has: a cluster to join, to start or to leave alone, and machines to place nodes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing_nodes import Board, Worker
from probe_nodes import Clock, Service, Talkative
from starting import wait_until
from test_programs import UPDATES, finish, tiny_program

from shoal.errors import UserError
from shoal.program import Program, Resources
from shoal.runtime import RunFailed, launch
from shoal.runtime.restarts import Supervisor
from shoal.versions import number

pytestmark = pytest.mark.ray
ray: Any = pytest.importorskip("ray")

from shoal.runtime.ray.cluster import join  # noqa: E402 - only where Ray is installed


@pytest.fixture(autouse=True)
def cluster(ray_cluster: str) -> str:
    return ray_cluster


def one_node(resources: Resources | None = None) -> tuple[Program, Any]:
    program = Program()
    service = program.add("service", Service)
    program.place("service", resources)
    return program, service


def test_a_cluster_that_was_there_before_is_used_and_left_running(cluster: str) -> None:
    program, service = one_node()
    with launch(program, "ray") as run:
        assert run.client(service).echo(1) == 1
    assert ray.is_initialized()
    assert ray.cluster_resources()["CPU"] == 2.0


def test_a_silent_head_is_told_once_and_nodes_can_still_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    program, service = one_node()
    with launch(program, "ray") as run:
        monkeypatch.setattr(run._watch, "silent_for", lambda: 20.4)  # type: ignore[attr-defined]
        with pytest.raises(RunFailed, match=r"^the head of the Ray cluster has been silent for 20 s: on another"):
            run.wait(1.0)
        run.wait(0.1)
        assert run.client(service).echo(1) == 1
    assert ray.is_initialized()


JOIN = """
import sys
from probe_nodes import Service
from shoal.program import Program
from shoal.runtime import launch

program = Program()
service = program.add("service", Service)
with launch(program, "ray", ray_address=sys.argv[1]) as run:
    print(run.client(service).echo("joined"), run.client(service).torch_threads())
"""


def test_a_run_joins_the_cluster_at_an_address_and_leaves_it_running(cluster: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", JOIN, cluster]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.stdout.split() == ["joined", "1"], done.stderr
    program, service = one_node()
    with launch(program, "ray") as run:
        assert run.client(service).echo(1) == 1


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", r"^--ray-address 127.0.0.1:1: no Ray cluster answers there \(.*refused\); start one with"),
        ("no.such.machine.invalid:6379", r"^--ray-address no.such.machine.invalid:6379: no Ray cluster answers there"),
        ("ray://127.0.0.1:10001", r"^--ray-address ray://127.0.0.1:10001: start shoal on a machine of the cluster"),
    ],
)
def test_an_address_where_no_cluster_answers_is_one_sentence(address: str, sentence: str) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match=sentence):
        join(address)
    assert time.monotonic() - began < 10.0


def test_more_nodes_than_processors_fit_when_nothing_is_asked_for() -> None:
    program = Program()
    clocks = [program.add(f"clock/{index}", Clock) for index in range(4)]
    with launch(program, "ray") as run:
        assert all(run.client(clock).steps() >= 0 for clock in clocks)


def test_a_node_is_placed_on_the_machine_it_names() -> None:
    program, service = one_node(Resources(cpus=0, node=ray.util.get_node_ip_address()))
    with launch(program, "ray") as run:
        assert run.client(service).echo(1) == 1


def test_nodes_are_placed_by_their_resources() -> None:
    program, service = one_node(Resources(cpus=1.5, memory=1 << 28))
    free = ray.available_resources().get("CPU", 0.0)
    with launch(program, "ray") as run:
        assert run.client(service).echo(1) == 1
        deadline = time.monotonic() + 10.0
        while ray.available_resources().get("CPU", 0.0) != free - 1.5:
            assert time.monotonic() < deadline, "the cluster does not know what was taken"
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        (Resources(gpus=8), r"node 'service' asks for 1 CPU, 8 GPU, which no machine of the Ray cluster has"),
        (Resources(cpus=64), r"node 'service' asks for 64 CPU, which no machine"),
        (Resources(node="big"), r"asks for 1 CPU, the machine 'big', which no machine"),
        (Resources(memory=1 << 50), r"asks for 1 CPU, 1.05e\+06 GB of memory, which no machine"),
    ],
)
def test_what_no_machine_offers_is_said_at_once(resources: Resources, sentence: str) -> None:
    program, _ = one_node(resources)
    began = time.monotonic()
    with pytest.raises(UserError, match=sentence):
        launch(program, "ray")
    assert time.monotonic() - began < 5.0


def test_what_does_not_fit_together_is_said_at_once() -> None:
    program = Program()
    for index in range(2):
        program.add(f"service/{index}", Service)
    program.place("service/*", Resources(cpus=1.5))
    with pytest.raises(UserError, match=r"the nodes ask for 3 CPU together, but the Ray cluster has 2 CPU"):
        launch(program, "ray")


def test_what_others_hold_is_told_within_ten_seconds() -> None:
    first, _ = one_node(Resources(cpus=2))
    second, _ = one_node(Resources(cpus=1))
    with launch(first, "ray"):
        began = time.monotonic()
        sentence = r"^the Ray cluster has no room: the nodes ask for 1 CPU; free are .+ 0 of 2 CPU\. Ask for less"
        with pytest.raises(UserError, match=sentence):
            launch(second, "ray")
        assert time.monotonic() - began < 12.0  # of which two are the machine's, which has much to do


def test_what_nodes_print_is_told_with_node_and_machine() -> None:
    program = Program()
    node = program.add("talkative", Talkative)
    told: list[tuple[str, str, str]] = []
    supervisor = Supervisor(on_print=lambda *words: told.append(words))
    with launch(program, "ray", supervisor=supervisor) as run:
        assert run.client(node).echo(1) == 1
        wait_until(run, lambda: "from below" in "".join(text for _, _, text in told))
        machine = run.machines()["talkative"]
    assert {words[:2] for words in told} == {("talkative", machine)}
    assert "hello from a node" in "".join(text for _, _, text in told)


def test_every_run_has_a_namespace_of_its_own() -> None:
    program, service = one_node()
    with launch(program, "ray") as one, launch(program, "ray") as other:
        one.client(service).append(1)
        assert other.client(service).log() == []
        assert one.pids() != other.pids()


FAMILIES: dict[str, dict[str, Any]] = {  # one of each kind of program; the others: make test-cluster
    "ppo": {"learners": 2},  # rollouts, a quota for each version, gradients averaged
    "apex_dqn": {"shards": 2},  # a prioritised replay in parts
    "a3c": {},  # workers around a gradient service
    "r2d2": {"inference": "central"},  # sequences and recurrent states, acted for centrally
}


@pytest.mark.parametrize("algorithm", FAMILIES)
def test_a_program_of_every_family_runs_on_ray(algorithm: str) -> None:
    with launch(tiny_program(algorithm, **FAMILIES[algorithm]), "ray") as run:
        version, weights = finish(run)
        assert number(version) >= UPDATES
        assert all(np.isfinite(value).all() for value in weights.values())
        assert run.supervisor.restarts.total() == 0


def test_who_is_told_something_before_it_has_a_place_hears_it_there() -> None:
    """Nodes begin some time after they were added: how many there are by then, and that they are to leave."""
    program = Program()
    board = program.add("board", Board)
    program.group("workers").add_alike("worker", 1, Worker, board)
    with launch(program, "ray") as run:
        said = run.client(board).said
        for _ in range(2):
            run.add(program.next_member("workers"))
        wait_until(run, lambda: {sign[0] for sign in said()["signs"] if sign[4] == 3} == set(program.nodes) - {"board"})
        run.add(program.next_member("workers"))
        run.remove("worker/3")
        run.remove("worker/2")
        wait_until(run, lambda: sorted(said()["forgotten"]) == ["worker/2", "worker/3"])
        assert "worker/2" in said()["lefts"]
