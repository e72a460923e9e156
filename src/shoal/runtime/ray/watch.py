"""What Ray knows of the cluster, asked by a thread of its own: the run never waits for Ray while it goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import ray as typed_ray

from shoal.runtime.ray.placement import Machine, named
from shoal.types import GIVEN_UP

LOOK = 2.0  # seconds between two looks
ray: Any = typed_ray  # its own types are incomplete


def look() -> list[Machine]:
    """The machines of the cluster that live, and what each has, and has free."""
    free = ray._private.state.available_resources_per_node()
    return named(
        [
            Machine(
                node["NodeID"],
                node.get("NodeManagerHostname", ""),
                node["NodeManagerAddress"],
                dict(node["Resources"]),
                dict(free.get(node["NodeID"], node["Resources"])),
                dict(node.get("Labels") or {}),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
    )


class Watch:
    """Looks at the cluster again and again, until it is closed."""

    def __init__(self) -> None:
        self._machines = {machine.id: machine for machine in look()}
        self._answered = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watch")
        self._thread.start()

    @property
    def machines(self) -> dict[str, Machine]:
        return self._machines

    def refresh(self) -> list[Machine]:
        """Look now."""
        self._machines = {machine.id: machine for machine in look()}
        self._answered = time.monotonic()
        return [*self._machines.values()]

    def silent_for(self) -> float:
        """Seconds since Ray has answered last."""
        return time.monotonic() - self._answered

    def close(self) -> None:
        self._end.set()
        self._thread.join(1.0)
        if self._thread.is_alive():  # Ray keeps it waiting
            self._thread.name = GIVEN_UP

    def _watch(self) -> None:
        while not self._end.wait(LOOK):
            with contextlib.suppress(Exception):  # Ray is gone, or about to: how long for is what is asked
                self.refresh()
