"""Calls that are repeated while the node they go to is being started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.program import NodeDied
from shoal.sync import monotonic, process_ends, sleep

T = TypeVar("T")

RECONNECT = 60.0  # seconds in which a node that was lost must answer again
PAUSE = 0.1  # seconds between two attempts to reach it


def patiently(call: Callable[[], T], seconds: float = RECONNECT, lost: tuple[type[Exception], ...] = (NodeDied,)) -> T:
    """Make a call that may be made twice: while its node is gone (`lost` says so), again and again, for so many
    seconds."""
    deadline: float | None = None
    while True:
        try:
            return call()
        except lost:
            deadline = deadline or monotonic() + seconds
            if process_ends() or monotonic() > deadline:
                raise
            sleep(PAUSE)
