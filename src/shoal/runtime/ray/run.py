"""A program on Ray: one Ray actor per node, placed by its resources.

Ray places the nodes on machines, starts their processes and says when one has died. The calls between nodes do not go
through Ray, which costs 1.6 to 2 ms of CPU each (and 6 ms from 100 KB on): every node listens on sockets of its own
and speaks the local runtime's protocol, so order, waiting, timeouts and failures are those of the local runtime.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import cloudpickle
import ray as typed_ray
from ray import exceptions

from shoal.errors import UserError
from shoal.program import Client, Context, Handle, Node, Program
from shoal.runtime import placement
from shoal.runtime.endpoints import NOWHERE, Endpoint, connect
from shoal.runtime.identity import Authority
from shoal.runtime.local.rpc import LocalLane
from shoal.runtime.ray.cluster import Cluster
from shoal.runtime.remote import BEAT, RemoteNode, make_lanes
from shoal.runtime.supervise import Supervisor
from shoal.runtime.supervised import Beat, Event, Finished, Lost, Supervision

GRACE = 3.0  # seconds a node may take to end by itself
PLACING = 120.0  # seconds the cluster may take to start the nodes
ray: Any = typed_ray  # its own types are incomplete


class NodeActor(RemoteNode):
    """The Ray actor in which a node lives."""

    def listen_here(self) -> tuple[str, Endpoint, int, bytes]:
        return self.listen(ray.util.get_node_ip_address())


@dataclass
class Process:
    """A node's Ray actor as the driver sees it."""

    node: Node
    actor: Any
    awaited: Any  # the reference to what it will tell next
    context: Context
    endpoint: Endpoint | None = None
    pid: int | None = None
    public_key: bytes = b""


class RayRun:
    """A running program. `wait` supervises; everything ends with `close` (or with this process)."""

    def __init__(
        self, program: Program, *, seed: int = 0, supervisor: Supervisor | None = None, address: str | None = None
    ) -> None:
        for name in [name for name, node in program.nodes.items() if hasattr(node.factory, "shared_client")]:
            program.place(name, restart=False)  # what survives it on one machine is memory that its clients share
        self.program = program
        self.supervisor = supervisor or Supervisor()
        self._supervision = Supervision(program, self, self.supervisor, seed, time.monotonic)
        self._authority = Authority()
        self._identity = self._authority.identity()
        self._namespace = f"shoal-{secrets.token_hex(8)}"
        self._processes: dict[str, Process] = {}
        self._killed: list[Event] = []  # losses that nobody will tell of
        self._lanes: dict[str, tuple[LocalLane, LocalLane]] = {}  # this process's own, by callee
        self._placing = True  # nodes begin when all of them have a place
        self._cluster = Cluster(address)
        try:
            placement.check(program, [machine["Resources"] for machine in ray.nodes() if machine["Alive"]])
            self._supervision.start_all()
            self._placed()
        except BaseException:
            self.close()
            raise

    # ---- using it

    def client(self, handle: Any) -> Any:
        """A client of a node, for this process."""
        assert isinstance(handle, Handle)
        name = handle.name
        if name not in self._lanes:
            self._lanes[name] = make_lanes(name, self._endpoint(name), self._identity)
            for lane in self._lanes[name]:
                lane.while_waiting = self._supervision.meanwhile
        return Client(name, *self._lanes[name])

    def wait(self, seconds: float) -> None:
        """Let the run go on for `seconds`, restarting what may be restarted; `RunFailed` when it cannot go on."""
        self._supervision.wait(seconds)

    def finished(self, handle: Any) -> bool:
        """Whether a node's `step` returned False."""
        return handle.name in self._supervision.finished

    def replace(self, name: str, reason: str) -> None:
        """Kill a node and have it started again like one that was lost."""
        self._supervision.replace(name, reason)

    def pids(self) -> dict[str, int]:
        """The nodes' processes, each on its own machine; one that is being placed is not among them."""
        return {name: process.pid for name, process in self._processes.items() if process.pid is not None}

    def close(self) -> None:
        with contextlib.suppress(exceptions.RayError):
            self._end()
        self._processes.clear()
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.close()
        self._lanes.clear()
        self._cluster.close()

    def _end(self) -> None:
        """Let the nodes end by themselves for a while, then kill what is left of them."""
        for process in self._processes.values():
            process.actor.stop.remote()
        deadline = time.monotonic() + GRACE
        waiting = {process.awaited: process for process in self._processes.values() if process.pid is not None}
        while waiting and (left := deadline - time.monotonic()) > 0:
            for ref in ray.wait(list(waiting), timeout=left)[0]:
                process = waiting.pop(ref)
                if isinstance(_answer(ref), Finished | Beat):  # not the last thing it has to tell
                    waiting[process.actor.event.remote()] = process
        for process in self._processes.values():
            ray.kill(process.actor)

    def __enter__(self) -> RayRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what the supervision asks for

    beats = BEAT

    def start(self, node: Node, context: Context) -> None:
        """Ask Ray for the node's actor. The node begins when its process listens."""
        options = self._cluster.options(node)
        options |= {"name": f"{node.name}#{context.restarts}", "namespace": self._namespace}
        actor = ray.remote(NodeActor).options(**options).remote(self._authority.trust, sys.path)
        self._processes[node.name] = Process(node, actor, actor.listen_here.remote(), context)

    def hear(self, timeout: float) -> list[Event]:
        told = {process.awaited: process for process in self._processes.values()}
        if self._killed or not told:
            time.sleep(0.0 if self._killed else timeout)
            events, self._killed = self._killed, []
            return events
        ready, _ = ray.wait(list(told), num_returns=len(told), timeout=0.0)
        if not ready:
            ready, _ = ray.wait(list(told), timeout=timeout)
        found = [self._listen(told[ref], _answer(ref)) for ref in ready]
        return [event for event in found if event is not None]

    def kill(self, name: str) -> None:
        """Ray asks a process to end itself, which one that is stopped does not hear: on this machine the kernel is
        asked too."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        ray.kill(process.actor)
        here = ray.util.get_node_ip_address()
        if process.pid is not None and process.endpoint is not None and process.endpoint.host == here:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        self._killed.append(Lost(name, "was killed"))

    def _listen(self, process: Process, told: Any) -> Event | None:
        """Take in what a node has told, or what Ray tells of its end."""
        match told:
            case ("listening", endpoint, pid, public_key):
                process.endpoint, process.pid, process.public_key = endpoint, pid, public_key
                if not self._placing:
                    self._begin(process)
                told = None
            case Lost():
                ray.kill(process.actor)
                del self._processes[process.node.name]
                return told
            case exceptions.RayError() as error:
                del self._processes[process.node.name]
                # before it began, only Ray knows what was wrong
                return Lost(process.node.name, _ending(error), None if process.pid else str(error))
        process.awaited = process.actor.event.remote()
        return told if isinstance(told, Finished | Beat) else None

    # ---- starting and connecting

    def _placed(self) -> None:
        """Wait until every node's process listens; say so when the cluster has no room for one."""
        deadline = time.monotonic() + PLACING
        while unplaced := [name for name in self.program.nodes if self._endpoint(name) is NOWHERE]:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"Ray has not started {', '.join(map(repr, unplaced))} within {PLACING:.0f} s: the cluster has "
                    f"{placement.amounts(ray.available_resources())} free; ask for less or add machines"
                )
            self._supervision.tick(deadline)
            if self.supervisor.interrupted():
                raise KeyboardInterrupt
        for process in self._processes.values():
            self._begin(process)
        self._placing = False

    def _begin(self, process: Process) -> None:
        """Set a node going, whose callees must listen by now."""
        node, name = process.node, process.node.name
        callees = {callee: self._endpoint(callee) for callee in node.callees()}
        certificate = self._authority.sign(process.public_key)
        process.actor.begin.remote(cloudpickle.dumps(node), process.context, callees, certificate)
        if process.context.restarts and process.endpoint is not None:
            for caller in self._processes.values():
                if caller.endpoint is not None and name in caller.node.callees():
                    caller.actor.reconnect.remote(name, process.endpoint)
            for lane in self._lanes.get(name, ()):
                lane.replace(connect(process.endpoint, self._identity))

    def _endpoint(self, name: str) -> Endpoint:
        """Where a node listens; nowhere while it is being started again."""
        process = self._processes.get(name)
        return process.endpoint if process and process.endpoint else NOWHERE


def _answer(ref: Any) -> Any:
    """What an order gave: its value, or the error that Ray met."""
    try:
        return ray.get(ref)
    except exceptions.RayError as error:
        return error


def _ending(error: exceptions.RayError) -> str:
    if isinstance(error, exceptions.OutOfMemoryError):
        return "was killed by Ray because its machine ran out of memory"
    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return "could not be started: Ray failed to prepare its environment"
    return "was killed or crashed"
