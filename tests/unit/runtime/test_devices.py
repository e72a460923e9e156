"""The device of a node: what its process is told of one that is there, and says of one that is not; with fake GPUs."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from fake_gpus import GIB, FakeGPUs
from shoal.errors import UserError
from shoal.program import Context, Members, Node, Resources
from shoal.runtime import devices
from shoal.types import Role


def node(role: Role = Role.LEARNER, **resources: Any) -> Node:
    return Node("one", object, resources=Resources(cpus=0.0, **resources), role=role)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeGPUs:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeGPUs(count=3).install(monkeypatch.setattr)


def test_a_node_without_its_device_says_so_with_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(devices, "missing", lambda device: "no driver")
    with pytest.raises(UserError) as told:
        devices.take(node(device="cuda", gpus=1.0), Context())
    assert str(told.value).startswith(
        "node 'one' is to compute on 'cuda', which cannot be used on the machine 'worker-7' (no driver): leave --device"
    )


def test_on_a_cpu_nobody_asks_torch_for_anything(gpus: FakeGPUs) -> None:
    devices.take(node(), Context())
    assert (gpus.chosen, gpus.fractions) == (0, {})


@pytest.mark.parametrize(
    ("resources", "bound"),
    [
        ({"gpus": 1.0}, {}),
        ({"gpus": 0.25}, {0: 0.25}),
        ({"gpus": 0.25, "gpu_memory": 12 * GIB}, {0: 0.5}),
        ({"gpus": 1.0, "gpu_memory": 12 * GIB}, {0: 0.5}),
        ({"gpus": 1.0, "gpu_memory": 99 * GIB}, {0: 1.0}),
    ],
)
def test_a_part_of_a_gpu_is_that_part_of_its_memory(
    gpus: FakeGPUs, resources: dict[str, Any], bound: dict[int, float]
) -> None:
    devices.take(node(Role.ACTOR, device="cuda", **resources), Context())
    assert gpus.fractions == bound


def test_a_gpu_that_is_named_is_bounded_and_no_other(gpus: FakeGPUs) -> None:
    devices.take(node(device="cuda:2", gpus=0.5), Context(members=Members(place=1)))
    assert gpus.fractions == {2: 0.5}
    assert gpus.chosen == 0, "it was named: nothing is chosen"
    with pytest.raises(UserError, match=r"invalid device ordinal\)"):
        devices.take(node(device="cuda:3", gpus=0.5), Context())


def test_of_several_learners_each_takes_another_gpu_and_who_acts_the_first(gpus: FakeGPUs) -> None:
    for place, chosen in ((0, 0), (1, 1), (2, 2), (3, 0)):
        devices.take(node(device="cuda", gpus=0.5), Context(members=Members(place, 4)))
        assert gpus.chosen == chosen
    assert gpus.fractions == {0: 0.5, 1: 0.5, 2: 0.5}
    gpus.chosen = 0
    devices.take(node(Role.ACTOR, device="cuda"), Context(members=Members(2, 4)))
    assert gpus.chosen == 0


def test_only_gpus_that_the_process_may_see_are_chosen(gpus: FakeGPUs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    devices.take(node(device="cuda"), Context(members=Members(1, 2)))
    assert gpus.chosen == 0, "the only one it sees"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="cannot be used on the machine"):
        devices.take(node(device="cuda"), Context())


def test_names_of_devices_are_known_without_having_one() -> None:
    assert devices.known("cuda:3") is None
    assert devices.known("gpu") is not None
