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
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import ray as typed_ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import UserError
from shoal.program import Context, Node, Program
from shoal.runtime.network.endpoints import NOWHERE, Endpoint, connect
from shoal.runtime.network.identity import Authority
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.processes import ProcessRun
from shoal.runtime.ray import placement
from shoal.runtime.ray.cluster import Cluster
from shoal.runtime.ray.remote import BEAT, RemoteNode, Stopped, make_lanes
from shoal.runtime.restarts import Supervisor
from shoal.runtime.supervision import Beat, Event, Finished, Lost

GRACE = 3.0  # seconds a node may take to end by itself
WITH_MACHINE = "was lost with its machine"
LOOK = 5.0  # seconds between two looks at the machines of the cluster
PLACING = 120.0  # seconds the cluster may take to start the nodes
ray: Any = typed_ray  # its own types are incomplete


class NodeActor(RemoteNode):
    """The Ray actor in which a node lives."""

    def listen_here(self) -> tuple[tuple[str, Endpoint, int, bytes], str]:
        """Where it listens, and on which machine."""
        return self.listen(ray.util.get_node_ip_address()), ray.get_runtime_context().get_node_id()


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
    machine: str = ""  # as Ray calls it
    begun: bool = False
    untold: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)  # calls that wait until it has begun


class RayRun(ProcessRun):
    """A running program, every node an actor of a Ray cluster."""

    def __init__(
        self, program: Program, *, seed: int = 0, supervisor: Supervisor | None = None, address: str | None = None
    ) -> None:
        super().__init__(program, supervisor, seed)
        self._authority = Authority()
        self._identity = self._authority.identity()
        self._namespace = f"shoal-{secrets.token_hex(8)}"
        self._processes: dict[str, Process] = {}
        self._killed: list[Event] = []  # losses that nobody will tell of
        self._moves: dict[str, str] = {}  # nodes that are to be on other machines when they are started again
        self._next_look = 0.0  # at the machines
        self._placing = True  # nodes begin when all of them have a place
        self._cluster = Cluster(address)
        try:
            self._machines = _machines()
            placement.check(program, list(self._machines.values()))
            self._supervision.start_all()
            self._placed()
        except BaseException:
            self.close()
            raise

    # ---- using it

    def make_lanes(self, name: str) -> tuple[LocalLane, LocalLane]:
        return make_lanes(name, self._endpoint(name), self._identity)

    def pids(self) -> dict[str, int]:
        """The nodes' processes, each on its own machine; one that is being placed is not among them."""
        return {name: process.pid for name, process in self._processes.items() if process.pid is not None}

    def close(self) -> None:
        with contextlib.suppress(exceptions.RayError):
            self._end()
        self._processes.clear()
        self.close_lanes()
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

    # ---- what the supervision asks for

    beats = BEAT
    capabilities = replace(ProcessRun.capabilities, restart_seconds=ProcessRun.capabilities.restart_seconds + PLACING)

    def start(self, node: Node, context: Context) -> None:
        """Ask Ray for the node's actor. The node begins when its process listens."""
        options = self._cluster.options(node, self._moves.pop(node.name, None))
        options |= {"name": f"{node.name}#{context.restarts}", "namespace": self._namespace}
        actor = ray.remote(NodeActor).options(**options).remote(self._authority.trust, sys.path)
        self._processes[node.name] = Process(node, actor, actor.listen_here.remote(), context)

    def hear(self, timeout: float) -> list[Event]:
        self._welcome_machines()
        told = {process.awaited: process for process in self._processes.values()}
        if self._killed or not told:
            time.sleep(0.0 if self._killed else timeout)
            events, self._killed = self._killed, []
            return events
        ready, _ = ray.wait(list(told), num_returns=len(told), timeout=0.0)
        if not ready:
            ready, _ = ray.wait(list(told), timeout=timeout)
        found = [self._listen(told[ref], _answer(ref)) for ref in ready]
        # who waits for a place in the cluster, for itself or for others, does not hang
        found += [Beat(name, 0) for name, process in self._processes.items() if not process.begun]
        return [event for event in found if event is not None]

    def kill(self, name: str) -> None:
        """Ray asks a process to end itself, which one that is stopped does not hear: the kernel of its machine is asked
        too."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        ray.kill(process.actor)
        if process.machine == ray.get_runtime_context().get_node_id():
            _kill(process.pid)
        elif process.pid is not None:
            there = NodeAffinitySchedulingStrategy(process.machine, soft=False)
            ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(process.pid)
        self._killed.append(Lost(name, "was killed"))

    def tell(self, name: str, method: str, *arguments: object) -> None:
        """As everywhere; a node that waits for its place hears it when it has begun."""
        process = self._processes.get(name)
        if process is None or process.begun:
            super().tell(name, method, *arguments)
        else:
            process.untold.append((method, arguments))

    def stop(self, name: str) -> None:
        if name in self._processes:
            self._processes[name].actor.stop.remote()

    def _listen(self, process: Process, told: Any) -> Event | None:
        """Take in what a node has told, or what Ray tells of its end."""
        match told:
            case (("listening", endpoint, pid, public_key), machine):
                process.endpoint, process.pid, process.public_key = endpoint, pid, public_key
                process.machine = machine
                if not self._placing:
                    self._begin(process)
                told = None
            case Lost() | Stopped():
                ray.kill(process.actor)
                del self._processes[process.node.name]
                return told if isinstance(told, Lost) else Lost(process.node.name, "ended as it was asked to")
            case exceptions.RayError() as error:
                del self._processes[process.node.name]
                reason = _ending(error)
                # before it began, only Ray knows what was wrong
                return Lost(process.node.name, reason, None if process.pid or reason == WITH_MACHINE else str(error))
        process.awaited = process.actor.event.remote()
        return told if isinstance(told, Finished | Beat) else None

    # ---- machines that come and go

    def _welcome_machines(self) -> None:
        """Give machines that have joined the cluster their share of the nodes that are spread over all of them."""
        if self._placing or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK
        before, self._machines = self._machines, _machines()
        joined = [machine for machine in self._machines if machine not in before]
        spread = {
            name: process.machine
            for name, process in self._processes.items()
            if process.node.spread and not placement.demand(process.node) and process.machine in self._machines
        }
        for name, machine in placement.moves(spread, self._machines, joined).items() if joined else ():
            self._moves[name] = machine
            self._supervision.replace(name, "was moved to a machine that has joined")

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
        process.begun = True
        node, name = process.node, process.node.name
        callees = {callee: self._endpoint(callee) for callee in node.callees()}
        certificate = self._authority.sign(process.public_key)
        process.actor.begin.remote(cloudpickle.dumps(node), process.context, callees, certificate)
        if not self._placing and process.endpoint is not None:
            for caller in self._processes.values():  # who has begun while this node was nowhere, or elsewhere
                if caller.begun and name in caller.node.callees():
                    caller.actor.reconnect.remote(name, process.endpoint)
            for lane in self._lanes.get(name, ()):
                lane.replace(connect(process.endpoint, self._identity))
        untold, process.untold = process.untold, []
        for method, arguments in untold:
            self.tell(name, method, *arguments)

    def _endpoint(self, name: str) -> Endpoint:
        """Where a node listens; nowhere while it is being started again."""
        process = self._processes.get(name)
        return process.endpoint if process and process.endpoint else NOWHERE


def _machines() -> dict[str, dict[str, float]]:
    """Those of the cluster that live, and what each offers."""
    return {machine["NodeID"]: machine["Resources"] for machine in ray.nodes() if machine["Alive"]}


def _kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


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
    if "its node has died" in str(error):
        return WITH_MACHINE
    return "was killed or crashed"
