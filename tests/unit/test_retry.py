"""Calls that are repeated while their node is being started again: for how long, how often, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import retry
from shoal.program import NodeDied
from shoal.retry import PAUSE, RECONNECT, patiently


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(retry, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
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
    assert patiently(failing(3, made)) == "answer"
    assert len(made) == 4
    assert clock[0] == pytest.approx(100.0 + 3 * PAUSE)


def test_patience_is_counted_from_the_first_failure(clock: list[float]) -> None:
    made: list[int] = []
    with pytest.raises(NodeDied):
        patiently(failing(10**6, made))
    assert clock[0] == pytest.approx(100.0 + RECONNECT, abs=2 * PAUSE)
    clock[0], made = 100.0, []
    with pytest.raises(NodeDied):
        patiently(failing(10**6, made), seconds=1.0)
    assert clock[0] == pytest.approx(101.0, abs=2 * PAUSE)


def test_in_a_process_that_ends_nothing_is_repeated(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "process_ends", lambda: True)
    made: list[int] = []
    with pytest.raises(NodeDied):
        patiently(failing(1, made))
    assert (len(made), clock[0]) == (1, 100.0)


def test_other_errors_are_the_calls_own(clock: list[float]) -> None:
    made: list[int] = []
    with pytest.raises(ValueError, match="mine"):
        patiently(failing(1, made, ValueError("mine")))
    assert len(made) == 1
