"""Which nodes move when a machine joins a cluster."""

from __future__ import annotations

from shoal.runtime.ray.placement import moves


def test_a_machine_that_joins_gets_its_share_from_those_that_have_most() -> None:
    places = {"actor/0": "a", "actor/1": "a", "actor/2": "a", "actor/3": "b", "evaluator": "a"}
    assert moves(places, ["a", "b", "new"], ["new"]) == {"evaluator": "new"}
    assert moves({f"actor/{index}": "a" for index in range(4)}, ["a", "new"], ["new"]) == {
        "actor/3": "new",
        "actor/2": "new",
    }


def test_nobody_moves_where_there_are_fewer_nodes_than_machines_or_all_is_even() -> None:
    assert moves({"actor/0": "a"}, ["a", "new"], ["new"]) == {}
    assert moves({"actor/0": "a", "actor/1": "new"}, ["a", "new"], ["new"]) == {}
    assert moves({}, [], []) == {}
