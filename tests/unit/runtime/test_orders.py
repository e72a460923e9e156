"""Orders to Ray: carried out one after the other by a thread that nobody waits for when Ray keeps it."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("ray")

from shoal.runtime.ray.orders import Orders
from shoal.types import GIVEN_UP

pytestmark = pytest.mark.ray


def test_orders_are_carried_out_in_turn_and_errors_stop_none() -> None:
    done: list[int] = []
    orders = Orders()
    orders.put(lambda: done.append(1))
    orders.put(lambda: 1 / 0)
    orders.put(lambda: done.append(2))
    assert orders.close(10.0)
    assert done == [1, 2]


def test_a_thread_that_ray_keeps_is_given_up() -> None:
    released, begun = threading.Event(), threading.Event()
    orders = Orders()

    def wait() -> None:
        begun.set()
        released.wait(30.0)

    orders.put(wait)
    assert begun.wait(10.0)
    assert not orders.close(0.05)
    (kept,) = [thread for thread in threading.enumerate() if thread.name == GIVEN_UP]
    released.set()
    kept.join(10.0)
    assert not kept.is_alive()
