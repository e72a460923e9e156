"""Where the time of an update goes: the seams of a learner, timed where they are called.

Every second is counted once, for the innermost part: the backward pass that an optimizer's step begins with is
backward, what is left of that step is optimizer. `forward` is what is left of an update: networks, losses, metrics.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shoal import optim
from shoal.loops import keeper, prefetch, sources
from shoal.nets.targets import Target
from shoal.replay import Sample

PARTS = {
    "forward": "networks, losses and metrics",
    "backward": "gradients, as one vector",
    "optimizer": "clipping and stepping",
    "target": "target networks following",
    "importance": "importance weights, and priorities on their way back",
    "copies": "what was sampled, as tensors",
    "publication": "weights, given to those who act",
    "waiting": "for what was sampled",
    "rest": "counting, reporting, snapshots",
}
SEAMS: tuple[tuple[Any, str, str], ...] = (
    (optim, "flat_gradient", "backward"),
    (optim.Local, "step", "optimizer"),
    (Target, "follow", "target"),
    (Sample, "importance_weights", "importance"),
    (sources.TableSource, "learned", "importance"),
    (prefetch, "to_batch", "copies"),
    (sources.TableSource, "take", "copies"),
    (keeper.Publication, "publish", "publication"),
    (sources.TableSource, "wait", "waiting"),
)


class Parts:
    """Seconds of each part, in the thread that made this or called `begin`, since then."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self.begin()

    def begin(self) -> None:
        self._thread, self._since = threading.get_ident(), time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if threading.get_ident() != self._thread:  # as of who asks a learner for its state
            yield
            return
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._open[-1] if self._open else "rest"] += now - self._since
        self._since = now

    def read(self) -> dict[str, float]:
        """The seconds up to now."""
        self._count()
        return dict(self.seconds)

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return call(*args, **options)

        return wrapper


@contextmanager
def timing_seams(parts: Parts) -> Iterator[None]:
    """Within, all that goes through the seams is timed, in this process."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in SEAMS]
    for owner, name, part in SEAMS:
        setattr(owner, name, parts.timed(getattr(owner, name), part))
    try:
        yield
    finally:
        for owner, name, call in before:
            setattr(owner, name, call)
