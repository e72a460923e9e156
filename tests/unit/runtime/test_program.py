"""A program is a description: names, handles, resources, seeds."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.program import (
    ANYWHERE,
    Capabilities,
    Client,
    Context,
    Done,
    Handle,
    Program,
    Resources,
    current,
    futures,
    node_seed,
    set_current,
)


class Thing:
    def __init__(self, *parts: Any, **named: Any) -> None:
        self.parts, self.named = parts, named


class Restartable(Thing):
    restart = True


def test_handles_become_clients_wherever_they_are_nested() -> None:
    program = Program()
    a, b = program.add("a", Thing), program.add("b", Thing)
    program.add("c", Thing, a, [b, (a, 1)], key={"deep": [b]}, other="a")
    node = program.nodes["c"]
    assert node.callees() == ["a", "b"]
    built = node.build(lambda name: f"client of {name}")
    assert built.parts == ("client of a", ["client of b", ("client of a", 1)])
    assert built.named == {"key": {"deep": ["client of b"]}, "other": "a"}


def test_names_are_given_once() -> None:
    program = Program()
    program.add("a", Thing)
    with pytest.raises(ValueError, match="has a node named 'a' already"):
        program.add("a", Thing)


def test_handles_of_other_programs_are_refused() -> None:
    with pytest.raises(ValueError, match="refers to 'elsewhere', which is not in this program"):
        Program().add("a", Thing, [Handle("elsewhere")])


def test_resources_and_restarts_are_attached_apart_from_the_wiring() -> None:
    program = Program()
    for name in ("learner", "actor/0", "actor/1"):
        program.add(name, Restartable if name.startswith("actor") else Thing)
    program.place("actor/*", Resources(cpus=0.5))
    program.place("learner", restart=True)
    assert program.nodes["actor/1"].resources == Resources(cpus=0.5)
    assert program.nodes["actor/1"].restart
    assert program.nodes["learner"].resources == ANYWHERE
    assert program.nodes["learner"].restart
    with pytest.raises(ValueError, match="no node matches 'actr"):
        program.place("actr/*")


def test_seeds_differ_by_run_name_and_restart() -> None:
    seeds = {node_seed(run, name, life) for run in range(5) for name in ("a/0", "a/1", "b") for life in range(3)}
    assert len(seeds) == 45
    assert node_seed(1, "a/0", 2) == node_seed(1, "a/0", 2)


def test_a_thread_knows_the_node_it_works_for() -> None:
    before = current()
    set_current(Context("somebody", 5, 1))
    assert current() == Context("somebody", 5, 1)
    set_current(before)


def test_a_plain_object_answers_futures_at_once() -> None:
    answer = futures("text").upper()
    assert answer.done()
    assert answer.result() == "TEXT"


class Counting:
    """A lane that answers with the number of calls that it was given."""

    calls = 0

    def send(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        self.calls += 1
        return Done(self.calls)


@pytest.mark.parametrize("asks_ahead", [True, False])
def test_whether_calls_are_asked_ahead_is_the_runtimes_to_say(asks_ahead: bool) -> None:
    calls, ahead = Counting(), Counting()
    before = current()
    set_current(Context("actor/0", runtime=Capabilities(asks_ahead=asks_ahead)))
    try:
        assert futures(Client("replay", calls, ahead)).sample().result() == 1
    finally:
        set_current(before)
    assert (calls.calls, ahead.calls) == ((0, 1) if asks_ahead else (1, 0))
