"""What the runtimes that have a process per node share: how a run is used from the process that started it."""

from __future__ import annotations

import abc
import time
from typing import Any, Self

from shoal.program import Capabilities, Client, Context, Handle, Node, Program
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.restarts import LONGEST_BACKOFF, Supervisor
from shoal.runtime.supervision import SETTLING, STARTING, Event, Supervision


class ProcessRun(abc.ABC):
    """A running program. `wait` supervises; everything ends with `close` (or with this process)."""

    beats: float
    capabilities = Capabilities(restart_seconds=LONGEST_BACKOFF + SETTLING + STARTING)

    def __init__(self, program: Program, supervisor: Supervisor | None, seed: int) -> None:
        self.program = program
        self.supervisor = supervisor or Supervisor()
        self._supervision = Supervision(program, self, self.supervisor, seed, time.monotonic)
        self._lanes: dict[str, tuple[LocalLane, LocalLane]] = {}  # this process's own, by callee
        self._clients: dict[str, Any] = {}

    def client(self, handle: Any) -> Any:
        """The client of a node, for this process: one for all who ask, as it may hold descriptors."""
        assert isinstance(handle, Handle)
        name = handle.name
        if name not in self._clients:
            self._lanes[name] = self.make_lanes(name)
            for lane in self._lanes[name]:
                lane.while_waiting = self._supervision.meanwhile
            self._clients[name] = self.make_client(name, Client(name, *self._lanes[name]))
        return self._clients[name]

    def make_client(self, name: str, calls: Client) -> Any:
        """What this process uses a node through, given one that calls it."""
        return calls

    def wait(self, seconds: float) -> None:
        """Let the run go on for `seconds`, restarting what may be lost; `RunFailed` when it cannot go on."""
        self._supervision.wait(seconds)

    def finished(self, handle: Any) -> bool:
        """Whether a node's `step` returned False."""
        return handle.name in self._supervision.finished

    def replace(self, name: str, reason: str) -> None:
        """Kill a node and have it started again like one that was lost."""
        self._supervision.replace(name, reason)

    def add(self, *nodes: Node) -> None:
        """Start further nodes."""
        self._supervision.add(*nodes)

    def remove(self, name: str) -> None:
        """Have a node leave after its present step, while the run goes on."""
        self._supervision.remove(name)

    def tell(self, name: str, method: str, *arguments: object) -> None:
        """Call a node without waiting for the answer."""
        self.client(Handle(name))
        self._lanes[name][1].send(method, arguments, {})

    def cleared(self, name: str) -> None:
        """A node has left: close this process's streams to it."""
        self._clients.pop(name, None)
        for lane in self._lanes.pop(name, ()):
            lane.close()

    def machines(self) -> dict[str, str]:
        """The name of the machine that each node is on; nothing where there is but one."""
        return {}

    def room(self) -> int:
        """For how many further actors machines have CPUs that nobody holds; 0 where nobody counts."""
        return 0

    def can_start(self) -> bool:
        return True

    def close_lanes(self) -> None:
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.close()
        self._lanes.clear()
        self._clients.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def make_lanes(self, name: str) -> tuple[LocalLane, LocalLane]: ...
    @abc.abstractmethod
    def start(self, node: Node, context: Context) -> None: ...
    @abc.abstractmethod
    def hear(self, timeout: float) -> list[Event]: ...
    @abc.abstractmethod
    def kill(self, name: str) -> None: ...
    @abc.abstractmethod
    def stop(self, name: str) -> None: ...
    @abc.abstractmethod
    def close(self) -> None: ...
