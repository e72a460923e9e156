"""Calls that are repeated while their node is being started again: for how long, how often, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import retry as policy
from shoal.program import Capabilities, Context, NodeDied
from shoal.retry import PAUSE, REACHED, retry
from shoal.runtime.processes import ProcessRun
from shoal.runtime.restarts import LONGEST_BACKOFF
from shoal.runtime.supervision import SETTLING, STARTING


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(policy, "monotonic", lambda: now[0])
    monkeypatch.setattr(policy, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def failing(times: int, made: list[int], error: Exception | None = None) -> Any:
    def call() -> str:
        made.append(1)
        if len(made) <= times:
            raise error or NodeDied("gone")
        return "answer"

    return call


def test_a_call_is_made_again_after_a_pause_until_it_is_answered(clock: list[float]) -> None:
    made: list[int] = []
    assert retry(failing(3, made)) == "answer"
    assert len(made) == 4
    assert clock[0] == pytest.approx(100.0 + 3 * PAUSE)


def test_a_node_is_waited_for_as_long_as_its_runtime_may_take_to_start_it_again(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in (Capabilities().restart_seconds, 7.0):
        monkeypatch.setattr(policy, "current", lambda: Context(runtime=Capabilities(restart_seconds=seconds)))  # noqa: B023
        clock[0] = 100.0
        with pytest.raises(NodeDied):
            retry(failing(10**6, []))
        assert clock[0] == pytest.approx(100.0 + seconds, abs=2 * PAUSE)


def test_processes_are_given_the_time_that_their_supervisor_takes_and_ray_the_time_to_place_them_too() -> None:
    assert ProcessRun.capabilities.restart_seconds == LONGEST_BACKOFF + SETTLING + STARTING
    assert Capabilities().restart_seconds <= ProcessRun.capabilities.restart_seconds


def test_the_time_that_a_node_takes_to_load_its_state_does_not_count(clock: list[float]) -> None:
    """A replay is connected while it loads. It is lost once more after ten minutes of that, and comes back."""
    patience, attempts = Capabilities().restart_seconds, 0

    def call() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            clock[0] += 10 * patience
        if clock[0] < 100.0 + 11 * patience - 10.0:
            raise NodeDied("gone")
        return "answer"

    assert retry(call) == "answer"
    assert clock[0] == pytest.approx(100.0 + 11 * patience - 10.0, abs=2 * PAUSE)


def test_what_fails_at_once_had_not_reached_its_node(clock: list[float]) -> None:
    def call() -> None:
        clock[0] += 0.9 * REACHED
        raise NodeDied("gone")

    with pytest.raises(NodeDied):
        retry(call)
    assert clock[0] < 100.0 + 2 * Capabilities().restart_seconds


def test_before_each_further_attempt_its_caller_may_do_something(clock: list[float]) -> None:
    made: list[int] = []
    before: list[float] = []
    retry(failing(2, made), before_retry=lambda: before.append(clock[0]))
    assert before == pytest.approx([100.0 + PAUSE, 100.0 + 2 * PAUSE])


def test_in_a_process_that_ends_nothing_is_repeated(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "process_ends", lambda: True)
    made: list[int] = []
    with pytest.raises(NodeDied):
        retry(failing(1, made))
    assert (len(made), clock[0]) == (1, 100.0)


def test_other_errors_are_the_calls_own(clock: list[float]) -> None:
    made: list[int] = []
    with pytest.raises(ValueError, match="mine"):
        retry(failing(1, made, ValueError("mine")))
    assert len(made) == 1
