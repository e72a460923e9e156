"""Programs as descriptions: roles, groups, policies, what nodes may offer, and how groups grow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoal
from shoal.loops.actor import ActorLoop
from shoal.program import Handle, Offers, Program, Resources, offers
from shoal.replay import Replay, Table
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.types import Role

SOURCE = Path(shoal.__file__).parent


class Actor:
    role = Role.ACTOR
    restart = True

    def __init__(self, weights: WeightStore, rows: int = 1) -> None: ...


def test_a_factory_says_what_its_nodes_are_for_and_a_group_may_say_otherwise() -> None:
    program = Program()
    program.add("numbers", Metrics)
    program.group("rollouts", Role.QUEUE).add("rollouts", Replay, [Table.queue("rollouts", 4)])
    program.add("anything", dict)
    assert [node.role for node in program.nodes.values()] == [Role.METRICS, Role.QUEUE, Role.OTHER]
    assert [node.group for node in program.nodes.values()] == ["numbers", "rollouts", "anything"]


def test_nodes_are_found_by_role_and_policy_whatever_they_are_called() -> None:
    program = Program()
    program.group("a", policy="blue").add("x", WeightStore)
    program.group("b").add("y", WeightStore)
    assert program.find(Role.WEIGHTS) == Handle("y")
    assert program.find(Role.WEIGHTS, "blue") == Handle("x")
    assert program.find(Role.EVALUATOR) is None


def test_of_every_group_of_learners_the_first_leads() -> None:
    program = Program()
    for policy, name in (("main", "learner"), ("main", "learner/1"), ("blue", "b"), ("blue", "b/1")):
        program.group(f"{policy} learners", Role.LEARNER, policy).add(name, object)
    assert [node.name for node in program.leaders()] == ["learner", "b"]


def test_a_group_whose_members_are_alike_grows_by_the_lowest_free_number() -> None:
    program = Program()
    weights = program.add("weights", WeightStore)
    program.group("actors").add_alike("actor", 3, Actor, weights, rows=5)
    program.place("actor/*", Resources(gpus=0.5))
    del program.nodes["actor/1"]
    new = program.next_member("actors")
    assert (new.name, new.kwargs, new.role, new.restart, new.resources.gpus) == (
        "actor/1",
        {"rows": 5},
        Role.ACTOR,
        True,
        0.5,
    )
    program.insert(new)
    assert program.next_member("actors").name == "actor/3"
    members = program.members()
    assert {name: members[name].place for name in ("actor/0", "actor/2", "actor/1")} == {
        "actor/0": 0,
        "actor/2": 1,
        "actor/1": 2,
    }
    assert members["weights"].totals["actors"] == 3
    with pytest.raises(ValueError, match="no group 'weights' whose members are made alike"):
        program.next_member("weights")


def test_a_parameter_of_a_node_is_changed_by_its_name() -> None:
    program = Program()
    weights = program.add("weights", WeightStore)
    program.add("one", Actor, weights, 3)
    program.add("two", Actor, weights, rows=3)
    for name in ("one", "two"):
        changed = program.nodes[name].changed("rows", lambda rows: rows + 1)
        assert changed.args == (Handle("weights"), 4)


def test_only_what_is_listed_can_be_asked_of_a_node() -> None:
    assert offers(ActorLoop, "finish")
    assert not offers(Metrics, "finish")
    with pytest.raises(AttributeError, match="nothing that nodes may offer"):
        offers(ActorLoop, "hop")


def test_nothing_is_decided_by_a_nodes_name_its_factory_or_the_place_of_an_argument() -> None:
    """Names are for people: rooms that watch and run programs use roles and `offers`."""
    forbidden = {"factory": "use its role, or program.offers", "args": "use Node.changed"}
    for path in SOURCE.rglob("*.py"):
        if path.name == "program.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute):
                assert node.left.attr != "factory", f"{path}:{node.lineno}: {forbidden['factory']}"
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "args":
                owner = node.value.value
                assert not (isinstance(owner, ast.Name) and owner.id == "node"), f"{path}: {forbidden['args']}"


def test_what_nodes_may_offer_is_said_of_each() -> None:
    documented = {name for name in vars(Offers) if not name.startswith("_")} | set(Offers.__annotations__)
    assert {"role", "restart", "spread", "step", "close", "finish", "report", "regroup", "forget"} <= documented
