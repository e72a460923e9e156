"""Orders to Ray that nobody waits for: while its head is silent, Ray keeps everybody waiting who asks for something."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from shoal.types import GIVEN_UP


class Orders:
    """Carries orders out one after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry_out, daemon=True, name="orders to Ray")
        self._thread.start()

    def put(self, order: Callable[[], object]) -> None:
        self._orders.put(order)

    def close(self, seconds: float) -> bool:
        """Whether all were carried out within so many seconds. A thread that Ray keeps is given up."""
        self._orders.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._thread.name = GIVEN_UP
            return False
        return True

    def _carry_out(self) -> None:
        while (order := self._orders.get()) is not None:
            with contextlib.suppress(Exception):  # with Ray gone, so is what it would have been told of
                order()
