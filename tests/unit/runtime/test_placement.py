"""Which node goes to which machine of a cluster, what is asked for it, and what is said when it cannot be had."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shoal.algorithms import impala
from shoal.envs import describe
from shoal.errors import UserError
from shoal.loops.actor import ActorLoop, RemoteActorLoop
from shoal.loops.evaluator import Evaluator
from shoal.loops.learner import LearnerLoop
from shoal.loops.wiring import ReplayFrontend, Settings
from shoal.loops.worker import Publisher, WorkerLoop
from shoal.program import Node, Program, Resources
from shoal.replay import Replay
from shoal.runtime.ray import placement
from shoal.runtime.ray.placement import Machine, NoRoom, Places, Wishes, moves, place
from shoal.services.gradients import GradientServer
from shoal.services.group import Group
from shoal.services.inference import InferenceServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore

STAY = [Metrics, WeightStore, Replay, ReplayFrontend, Group, GradientServer, InferenceServer, LearnerLoop, Publisher]
SPREAD = [ActorLoop, RemoteActorLoop, Evaluator, WorkerLoop]
HERE = "driver"


def machine(name: str, cpus: float = 2.0, free: float | None = None, **more: float) -> Machine:
    offered = {"CPU": cpus, **more}
    return Machine(name, name, f"10.0.0.{len(name)}", offered, offered | {"CPU": cpus if free is None else free})


def node(factory: Any, resources: Resources | None = None, name: str = "node") -> Node:
    program = Program()
    program.add(name, factory)
    program.place(name, resources)
    return program.nodes[name]


def actors(count: int) -> list[Node]:
    return [node(ActorLoop, name=f"actor/{index}") for index in range(count)]


def impala_nodes(**options: Any) -> list[Node]:
    cfg = impala.Config(env="CartPole-v1", **options)
    return [*impala.program(cfg, describe("CartPole-v1"), Settings()).nodes.values()]


def placed(nodes: list[Node], machines: list[Machine], **more: Any) -> Places:
    return place(nodes, machines, HERE, more.pop("wishes", Wishes()), **more)


def counted(places: Places) -> Counter[str]:
    return Counter(places.machine.values())


# ---- who goes where


@pytest.mark.parametrize("factory", STAY)
def test_services_and_learners_stay_with_the_driver(factory: Any) -> None:
    """Or the loss of any machine would be the loss of one of them, restartable or not."""
    assert placed([node(factory)], [machine("large", 64), machine(HERE)]).machine == {"node": HERE}


@pytest.mark.parametrize("factory", SPREAD)
def test_what_there_are_many_of_is_spread_by_the_cpus_that_are_free(factory: Any) -> None:
    many = [node(factory, name=f"node/{index}") for index in range(12)]
    assert counted(placed(many, [machine(HERE, 4), machine("b", 4), machine("c", 4)])) == {HERE: 4, "b": 4, "c": 4}
    assert counted(placed(many, [machine(HERE, 16, 4), machine("b", 16, 8)])) == {HERE: 4, "b": 8}


def test_every_machine_gets_something_where_there_are_as_many_nodes() -> None:
    assert set(counted(placed(actors(5), [machine(HERE), machine("b"), machine("c")])).values()) == {1, 2}


def test_services_are_beside_a_learner_whose_gpu_is_elsewhere() -> None:
    nodes = [node(Metrics, name="metrics"), node(WeightStore, name="weights")]
    nodes.append(node(LearnerLoop, Resources(cpus=0.0, gpus=1.0), name="learner"))
    places = placed(nodes, [machine(HERE), machine("gpus", GPU=2.0)])
    assert counted(places) == {"gpus": 3}
    assert places.beside == "gpus"


def test_a_driver_on_a_machine_without_cpus_has_its_learner_and_services_elsewhere() -> None:
    """As on clusters whose head is there for Ray alone."""
    places = placed(impala_nodes(actors=2), [machine(HERE, 0), machine("b", 8)])
    assert set(places.machine.values()) == {"b"}


def test_who_asks_for_something_is_placed_where_that_is() -> None:
    asked = Resources(cpus=2.0, memory=1 << 30, node="big")
    big = machine("big", memory=2.0**31, **{"node:big": 1.0})
    assert placed([node(LearnerLoop, asked)], [machine(HERE, 8), big]).machine == {"node": "big"}


def test_a_machine_that_has_just_lost_something_is_avoided() -> None:
    three = [machine(HERE), machine("b"), machine("c")]
    assert "b" not in counted(placed(actors(3), three, avoided={"b"}))
    assert counted(placed(actors(1), [machine("b")], avoided={"b"})) == {"b": 1}, "it is better than nothing"


def test_a_role_can_be_placed_by_a_label() -> None:
    labelled = Machine("m", "host-3", "10.0.0.9", {"CPU": 4.0, "fast": 1.0}, {"CPU": 4.0}, {"pool": "acting"})
    machines = [machine(HERE, 4), labelled]
    for label in ("acting", "pool:acting", "fast", "host-3", "10.0.0.9"):
        assert counted(placed(actors(3), machines, wishes=Wishes(places={"actor": label}))) == {"m": 3}
    with pytest.raises(UserError, match=r"^--place actor=slow: no machine .* there are driver, host-3"):
        placement.check(actors(3), machines, Wishes(places={"actor": "slow"}))
    with pytest.raises(UserError, match=r"^--place worker=…: the program has no such role: it has actor"):
        placement.check(actors(3), machines, Wishes(places={"worker": "fast"}))


# ---- what is asked for


def test_who_computes_asks_for_a_cpu_and_services_ask_for_none() -> None:
    asked = placed(impala_nodes(actors=3), [machine(HERE, 8)]).asked
    computing = {"learner", "evaluator", "actor/0", "actor/1", "actor/2"}
    assert {name for name, amounts in asked.items() if amounts == {"CPU": 1.0}} == computing
    assert all(not amounts for name, amounts in asked.items() if name not in computing)


def test_more_nodes_than_cpus_share_what_is_free() -> None:
    """A laptop, and a cluster of three."""
    for machines in ([machine(HERE, 2)], [machine(HERE, 2), machine("b", 3), machine("c", 1)]):
        places = placed(impala_nodes(actors=64), machines)
        assert places.shared
        for name, amounts in places.held().items():
            assert amounts["CPU"] <= next(one for one in machines if one.name == name).free["CPU"]
        more = placed(actors(8), machines, shared=True)
        assert not any(more.asked.values()), "they share what the run holds"


def test_what_others_hold_is_not_shared() -> None:
    with pytest.raises(NoRoom):
        placed(impala_nodes(actors=4), [machine(HERE, 8, free=2)])
    with pytest.raises(NoRoom):
        placed(impala_nodes(actors=64), [machine(HERE, 2, free=0)])
    said = placement.told(impala_nodes(actors=4), [machine(HERE, 8, free=2)], Wishes())
    assert said == "the nodes ask for 6 CPU; free are driver 2 of 8 CPU"


def test_who_waits_for_machines_asks_for_all_that_is_needed() -> None:
    with pytest.raises(NoRoom):
        placed(impala_nodes(actors=64), [machine(HERE, 2)], patient=True)


def test_the_cpus_of_an_actor_can_be_given() -> None:
    asked = placed(actors(4), [machine(HERE, 2)], wishes=Wishes(actor_cpus=0.5)).asked
    assert {amounts["CPU"] for amounts in asked.values()} == {0.5}
    assert not any(placed(actors(9), [machine(HERE, 2)], wishes=Wishes(actor_cpus=0.0)).asked.values())


def gpus(**devices: str) -> dict[str, float]:
    """What is asked for, for the nodes of a program that work on devices."""
    asked = {node.name: placement.demand(node).get("GPU", 0.0) for node in impala_nodes(actors=3, **devices)}
    return {name: share for name, share in asked.items() if share}


def test_who_computes_on_cuda_asks_for_a_gpu_and_nobody_else() -> None:
    acting = ("actor/0", "actor/1", "actor/2", "evaluator")
    assert gpus(device="cuda") == {"learner": 1.0}
    assert gpus(acting_device="cuda:0") == pytest.approx(dict.fromkeys(acting, 0.25), abs=2e-4)
    assert gpus() == {}
    shared = gpus(device="cuda", acting_device="cuda")
    assert shared == pytest.approx({"learner": 0.75} | dict.fromkeys(acting, 0.0625), abs=2e-4)
    assert sum(shared.values()) <= 1.0, "one GPU is enough"


def test_parts_of_a_gpu_go_together_and_whole_ones_stay_alone() -> None:
    shares = {"learner": 0.75, "a": 0.125, "b": 0.125, "c": 0.125, "two": 2.0, "one": 1.0}
    nodes = [node(LearnerLoop, Resources(cpus=0.0, gpus=share), name) for name, share in shares.items()]
    assert [[one.name for one in shared] for shared in placement.bins(nodes)] == [
        ["two"],
        ["one"],
        ["learner", "a", "b"],
        ["c"],
    ]


# ---- machines that join


def test_a_machine_that_joins_gets_its_share_from_those_that_have_most() -> None:
    places = {"actor/0": "a", "actor/1": "a", "actor/2": "a", "actor/3": "b", "evaluator": "a"}
    assert moves(places, {"a": 2, "b": 2, "new": 2}, ["new"]) == {"evaluator": "new"}
    assert moves({f"actor/{index}": "a" for index in range(4)}, {"a": 2, "new": 2}, ["new"]) == {
        "actor/3": "new",
        "actor/2": "new",
    }
    larger = moves({f"actor/{index}": "a" for index in range(8)}, {"a": 2, "new": 6}, ["new"])
    assert len(larger) == 6


def test_nobody_moves_where_there_are_fewer_nodes_than_machines_or_all_is_even() -> None:
    assert moves({"actor/0": "a"}, {"a": 2, "new": 2}, ["new"]) == {}
    assert moves({"actor/0": "a", "actor/1": "new"}, {"a": 2, "new": 2}, ["new"]) == {}
    assert moves({}, {}, []) == {}
    assert moves({"actor/0": "a"}, {"a": 0, "new": 0}, ["new"]) == {}


def test_machines_of_one_name_are_told_apart() -> None:
    alike = [Machine(f"{n}" * 8, "host", f"10.0.0.{n}", {}, {}) for n in (1, 2)]
    assert [one.name for one in placement.named(alike)] == ["10.0.0.1", "10.0.0.2"]
    here = [Machine(f"{n}" * 8, "host", "127.0.0.1", {}, {}) for n in (1, 2)]
    assert [one.name for one in placement.named(here)] == ["127.0.0.1 (111111)", "127.0.0.1 (222222)"]
    assert placement.named([alike[0]])[0].name == "host"
