"""Programs that one machine cannot run are refused in a sentence that says what is missing."""

from __future__ import annotations

import pytest

from shoal.errors import UserError
from shoal.program import Program
from shoal.runtime import launch
from shoal.runtime.local import limits
from shoal.runtime.local.limits import Limits, check

PLENTY = Limits(tasks=1e6, files=1e6, memory=1e12)


class Service:
    """Called by all."""


class Actor:
    def __init__(self, service: Service) -> None: ...


def program(actors: int) -> Program:
    described = Program()
    service = described.add("service", Service)
    for index in range(actors):
        described.add(f"actor/{index}", Actor, service)
    return described


def test_what_fits_is_not_refused() -> None:
    check(program(100), PLENTY)
    check(program(100), Limits(tasks=2 * 101 / limits.SHARE + 200 / limits.SHARE + 1, files=200 + 256, memory=1e9))


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Limits(tasks=400, files=1e6, memory=1e12), "402 processes and threads on this machine, where 400 are allowed"),
        (Limits(tasks=1e6, files=455, memory=1e12), "456 open files in one process on this machine, where 455"),
        (Limits(tasks=1e6, files=1e6, memory=2**29), "1 GB of memory on this machine, where 0.5 GB are free"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_missing(machine: Limits, words: str) -> None:
    with pytest.raises(
        UserError, match=r"^101 nodes need at least .*: give fewer --actors \(about \d+ nodes"
    ) as caught:
        check(program(100), machine)
    assert words in str(caught.value)


def test_a_hundred_thousand_nodes_are_refused_before_one_is_started() -> None:
    with pytest.raises(UserError, match="100,001 nodes need"):
        launch(program(100_000), "local")


def test_the_number_of_nodes_that_would_fit_is_a_share_of_those_asked_for() -> None:
    with pytest.raises(UserError, match=r"about 50 nodes would fit"):
        check(program(100), Limits(tasks=402 / limits.SHARE / 2, files=1e6, memory=1e12))


def test_nodes_that_are_added_are_counted_together_and_only_their_memory_is_asked_for() -> None:
    described = Program()
    described.group("actors").add_alike("actor", 100, Actor, described.add("service", Service))
    room = Limits(tasks=1e6, files=1e6, memory=50 * limits.NODE_MEMORY / limits.SHARE)
    check(described, room, more=described.next_members("actors", 50))
    with pytest.raises(UserError, match=r"^152 nodes need at least .* would fit"):
        check(described, room, more=described.next_members("actors", 51))
    with pytest.raises(UserError, match="open files"):
        check(described, Limits(tasks=1e6, files=555, memory=1e12), more=described.next_members("actors", 50))


def test_nodes_that_do_not_fit_are_not_added_to_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    described = Program()
    described.group("actors").add_alike("actor", 1, Actor, described.add("service", Service))
    with launch(described, "local") as run:
        monkeypatch.setattr(Limits, "here", lambda: Limits(tasks=1e6, files=1e6, memory=3 * limits.NODE_MEMORY))
        with pytest.raises(UserError, match="5 nodes need at least"):
            run.add(*described.next_members("actors", 3))
        assert set(run.pids()) == set(described.nodes) == {"service", "actor/0"}
        run.add(*described.next_members("actors", 2))
        assert set(run.pids()) == {"service", "actor/0", "actor/1", "actor/2"}
