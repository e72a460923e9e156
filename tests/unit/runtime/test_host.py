"""What surrounds a node's object: signs of life in exact seconds, progress, what is told of its end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from shoal import sync
from shoal.envs import EnvFault
from shoal.errors import UserError
from shoal.program import Context, NodeDied, current, set_current
from shoal.runtime import host
from shoal.runtime.host import Heart


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("shoal.runtime.host.time.monotonic", lambda: self.now)


class Scripted:
    """A node that calls something in each step, and ends when there is nothing left to call."""

    def __init__(self, *calls: Any) -> None:
        self._calls = list(calls)

    def step(self) -> bool:
        if not self._calls:
            return False
        self._calls.pop(0)()
        return True


def test_time_in_one_step_is_counted_and_begins_anew_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    heart, seen = Heart(), []

    def beat(seconds: float = 1.0) -> None:
        clock.now += seconds
        seen.append(heart.beat(1.0)[1])

    def long() -> None:
        for _ in range(3):
            beat()

    assert heart.drive(Scripted(long, beat, long), lambda: False) is True
    beat()
    assert seen == [1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 2.0, 0.0]
    assert heart.progress == 3


def test_time_in_which_the_process_stood_still_or_waited_or_got_something_done_is_none_of_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    heart, seen = Heart(), []

    def step() -> None:
        clock.now += 1.0
        seen.append(heart.beat(1.0)[1])
        clock.now += 500.0  # a closed lid: no beat came in between
        seen.append(heart.beat(1.0)[1])
        with sync.waiting():
            clock.now += 1.0
            seen.append(heart.beat(1.0)[1])
        clock.now += 1.0
        seen.append(heart.beat(1.0)[1])  # the wait has ended since: a sign
        clock.now += 1.0
        seen.append(heart.beat(1.0)[1])
        sync.sign_of_life()
        clock.now += 1.0
        seen.append(heart.beat(1.0)[1])

    heart.drive(Scripted(step), lambda: False)
    assert seen == [1.0, 3.0, 0.0, 0.0, 1.0, 0.0]


def test_progress_is_what_a_node_says_of_itself_or_its_steps() -> None:
    heart = Heart()
    assert heart.progress == 0, "before there is an object"
    heart.drive(Scripted(lambda: None, lambda: None), lambda: False)
    assert heart.progress == 2
    learner = Scripted(lambda: None)
    learner.progress = 41  # type: ignore[attr-defined]
    heart.drive(learner, lambda: False)
    assert heart.progress == 41
    assert heart.drive(object(), lambda: False) is False
    assert heart.progress is None


def test_a_node_stops_between_two_steps_and_errors_while_stopping_are_the_stops_own() -> None:
    stopping = [False]

    def stop() -> None:
        stopping[0] = True
        raise NodeDied("hung up")

    assert Heart().drive(Scripted(stop, lambda: None), lambda: stopping[0]) is False
    with pytest.raises(NodeDied):
        Heart().drive(Scripted(stop), lambda: False)


@pytest.mark.parametrize(
    ("error", "reason", "secondary", "user_error"),
    [
        (ValueError("no width."), "raised ValueError: no width", False, None),
        (NodeDied("node 'replay' is gone"), "raised shoal.program.NodeDied: node 'replay' is gone", True, None),
        (EnvFault("mine: 'reward' is nan."), "failed: mine: 'reward' is nan", False, None),
        (UserError("Give more."), "raised shoal.errors.UserError: Give more", False, "Give more."),
    ],
)
def test_what_is_told_of_an_error(error: Exception, reason: str, secondary: bool, user_error: str | None) -> None:
    told = host.failure("actor/0", error, 7)
    assert (told.node, told.reason, told.secondary, told.user_error, told.progress) == (
        "actor/0",
        reason,
        secondary,
        user_error,
        7,
    )


def test_of_what_a_users_code_says_only_so_much_is_shown_and_terminals_obey_none_of_it() -> None:
    told = host.failure("actor/0", ValueError("\x1b[2J" + "x" * 1_000_000), 7)
    assert told.reason.startswith("raised ValueError: ?[2Jxxx")
    assert len(told.reason) < host.LONGEST_SENTENCE + 50
    assert told.traceback is not None
    assert len(told.traceback) < host.LONGEST_TRACEBACK + 50
    assert "characters …]" in told.traceback
    assert "\x1b" not in told.reason + told.traceback


def test_a_sentence_needs_no_traceback_unless_somebody_elses_code_has_raised_first() -> None:
    assert host.failure("actor/0", EnvFault("mine: 'reward' is nan."), 7).traceback is None
    raised = EnvFault("mine could not be stepped: KeyError: 'door'.")
    raised.__cause__ = KeyError("door")
    assert "KeyError: 'door'" in (host.failure("actor/0", raised, 7).traceback or "")


def test_a_number_of_threads_that_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    found = host.single_threaded_environment()
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("4", "1")


class Closing:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.closed = error, 0

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def test_what_fails_while_closing_is_told_unless_the_node_has_failed_already() -> None:
    node = Closing(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        host.close(node)
    host.close_quietly(node)
    host.close(object())
    assert node.closed == 2


@pytest.fixture
def own_generators() -> Iterator[None]:
    """What is global stays as it was for other tests."""
    before, threads, context = host.generator_states(), torch.get_num_threads(), current()
    yield
    host.load_generator_states(before)
    torch.set_num_threads(threads)
    set_current(context)


def draws() -> list[float]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


@pytest.mark.usefixtures("own_generators")
def test_a_node_begins_with_its_own_seed_in_every_library_and_its_own_threads() -> None:
    found = []
    for seed in (7, 8, 7):
        host.prepare(Context("actor/0", seed), threads=3)
        found.append(draws())
    assert found[0] == found[2]
    assert all(one != other for one, other in zip(found[0], found[1]))
    assert torch.get_num_threads() == 3
    assert current().name == "actor/0"


@pytest.mark.usefixtures("own_generators")
def test_global_generators_go_on_where_they_were_in_every_library() -> None:
    states = host.generator_states()
    before, after = draws(), draws()
    host.load_generator_states(states)
    assert draws() == before
    assert draws() == after
    assert all(one != other for one, other in zip(before, after))


def test_a_node_that_has_ended_its_steps_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    heart = Heart()
    heart.drive(Scripted(), lambda: False)
    for _ in range(2):
        clock.now += 1.0
        assert heart.beat(1.0)[1] == 0.0
