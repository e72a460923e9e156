"""What only the Ray runtime has: a cluster to join, to start or to leave alone, and machines to place nodes on."""

from __future__ import annotations

import time
from typing import Any

import pytest
from probe_nodes import Clock, Service

from shoal.errors import UserError
from shoal.program import Program, Resources
from shoal.runtime import launch

pytestmark = pytest.mark.ray
ray: Any = pytest.importorskip("ray")


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


def test_more_nodes_than_processors_fit_when_nothing_is_asked_for() -> None:
    program = Program()
    clocks = [program.add(f"clock/{index}", Clock) for index in range(4)]
    with launch(program, "ray") as run:
        assert all(run.client(clock).steps() >= 0 for clock in clocks)


def test_nodes_are_placed_by_their_resources() -> None:
    program, service = one_node(Resources(cpus=1.5))
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


def test_what_others_hold_is_waited_for_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = one_node(Resources(cpus=2))
    second, _ = one_node(Resources(cpus=1))
    with launch(first, "ray"):
        monkeypatch.setattr("shoal.runtime.ray.PLACING", 2.0)
        with pytest.raises(UserError, match=r"has not started 'service' within 2 s: the cluster has .* free"):
            launch(second, "ray")


def test_every_run_has_a_namespace_of_its_own() -> None:
    program, service = one_node()
    with launch(program, "ray") as one, launch(program, "ray") as other:
        one.client(service).append(1)
        assert other.client(service).log() == []
        assert one.pids() != other.pids()
