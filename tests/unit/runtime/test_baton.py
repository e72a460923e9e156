"""The inline runtime's clock."""

from __future__ import annotations

import functools

import pytest

from shoal.runtime.baton import Baton


@pytest.mark.parametrize(("now", "seconds"), [(0.3, 5.6e-17), (0.1, 1e-12), (12.5, 4e-10)])
def test_some_time_passes_however_little_is_asked_for(now: float, seconds: float) -> None:
    baton = Baton()
    baton.now = now
    assert now < baton.after(seconds) <= now + 2e-9


def test_times_are_whole_nanoseconds() -> None:
    baton = Baton()
    baton.now = 0.1
    assert baton.after(0.2) == 0.3
    assert baton.after(0.0) == 0.1


def test_who_waits_for_no_time_at_all_keeps_its_turn() -> None:
    baton, ran = Baton(), list[str]()
    baton.spawn("other", (0,), lambda: ran.append("other"))
    with baton.driving():
        assert not baton.wait_for(lambda: False, 0.0, "nothing")
        assert (ran, baton.now) == ([], 0.0)
        assert baton.wait_for(lambda: bool(ran), 1.0, "the other")
    baton.stop()


def test_turns_go_by_place_whenever_a_thread_was_started() -> None:
    baton, ran = Baton(), list[tuple[int, ...]]()

    def twice(place: tuple[int, ...]) -> None:
        for _ in range(2):
            ran.append(place)
            baton.yield_turn()

    for place in [(2,), (0,), (1,), (0, 2)]:  # the last one is a lane, from the first node to the third
        baton.spawn(str(place), place, functools.partial(twice, place))
    with baton.driving():
        assert baton.wait_for(lambda: len(ran) == 8, 1.0, "the others")
    baton.stop()
    assert ran == [(0,), (0, 2), (1,), (2,)] * 2
