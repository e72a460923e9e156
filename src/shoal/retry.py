"""The one policy for a call to a node that is gone: it is made again until that node is back.

What may be made again: a call that does no harm when it is made twice, and that failed with an error that says that
its node is gone (`lost`). Every other error is the call's own.
How often: every `PAUSE` seconds. Until the node is back, an attempt fails at once and costs nothing.
For how long: as long as the runtime may take to start a node again (`Capabilities.restart_seconds`), after which the
connection must be broken though both its ends live: the caller then fails, and gets new connections with its next
life. The time that a node takes to load its state does not count: callers are connected by then, and wait in the call.
What ends it otherwise: the end of this process, with which the supervisor ends a run that cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.program import NodeDied, current
from shoal.sync import monotonic, process_ends, sleep

T = TypeVar("T")

PAUSE = 0.1  # seconds between two attempts
REACHED = 1.0  # seconds: a call that took so long to fail had reached its node, which was lost once more


def retry(
    call: Callable[[], T],
    *,
    lost: tuple[type[Exception], ...] = (NodeDied,),
    before_retry: Callable[[], None] = lambda: None,
) -> T:
    """The answer to a call that may be made twice, made again while its node is gone. `before_retry` is called after
    each pause."""
    since: float | None = None  # when the node was found gone
    while True:
        begun = monotonic()
        try:
            return call()
        except lost:
            now = monotonic()
            if since is None or now - begun >= REACHED:
                since = now
            if process_ends() or now - since > current().runtime.restart_seconds:
                raise
        sleep(PAUSE)
        before_retry()
