"""The parent of a local run: starts the node processes, connects them, restarts what may be lost, ends everything."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import cloudpickle

from shoal.program import Client, Context, Node, Program
from shoal.runtime.host import BEAT
from shoal.runtime.local import limits
from shoal.runtime.local.node import GRACE, Start
from shoal.runtime.local.zygote import CAN_FORK, Launcher, Spawner, Zygote
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.transport import DESCRIPTORS, HAS_MEMFD, Closed, Connection, pair
from shoal.runtime.processes import ProcessRun
from shoal.runtime.restarts import RunFailed, Supervisor
from shoal.runtime.supervision import Event, Lost

MAIN = "main"
ZYGOTE = Node("zygote", Zygote, restart=True)  # no node of the program, but lost like one: it comes back at once
_warm: list[Zygote] = []


def warm() -> None:
    """Start importing in the background for a run that will follow: the command line calls this first of all."""
    if CAN_FORK and not _warm:
        _warm.append(Zygote())


def cool() -> None:
    """End what `warm` started when no run followed."""
    while _warm:
        _warm.pop().close()


@dataclass
class Process:
    node: Node
    pid: int
    control: Connection
    failure: Lost | None = None  # what it told before it ended


class LocalRun(ProcessRun):
    """A running program, every node a process of this machine."""

    def __init__(
        self,
        program: Program,
        *,
        seed: int = 0,
        supervisor: Supervisor | None = None,
        fork: bool = True,
    ) -> None:
        limits.raise_file_limit()
        limits.check(program, limits.Limits.here())
        super().__init__(program, supervisor, seed)
        self._starting = True  # nodes begin when all of them have been started
        self._processes: dict[str, Process] = {}
        self._boards: dict[str, int] = {}
        self._launcher: Launcher = (_warm.pop() if _warm else Zygote()) if fork and CAN_FORK else Spawner()
        try:
            for node in program.nodes.values():
                if HAS_MEMFD and hasattr(node.factory, "shared_client"):
                    self._boards[node.name] = os.memfd_create(f"shoal-{node.name}", os.MFD_CLOEXEC)
            self._supervision.start_all()
            self._begin()
        except BaseException:
            self.close()
            raise

    # ---- using it

    def make_client(self, name: str, calls: Client) -> Any:
        return self._board_client(name)(calls, self._boards[name]) if name in self._boards else calls

    def make_lanes(self, name: str) -> tuple[LocalLane, LocalLane]:
        one, other = (LocalLane(name, Connection(self._serve(MAIN, name))) for _ in range(2))
        return one, other

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def close(self) -> None:
        for process in self._processes.values():
            try:
                process.control.send(("stop",))
            except Closed:
                pass
        deadline = time.monotonic() + GRACE + 1.0
        for process in list(self._processes.values()):
            while process.control.ready(max(0.0, deadline - time.monotonic())):
                if isinstance(self._listen(process), Lost):
                    break
            else:
                self._launcher.kill(process.pid)
            process.control.close()
        self._processes.clear()
        self.close_lanes()
        for fd in self._boards.values():
            os.close(fd)
        self._boards.clear()
        self._launcher.close()

    # ---- what the supervision asks for

    beats = BEAT

    def can_start(self) -> bool:
        return self._launcher.ready()

    def start(self, node: Node, context: Context) -> None:
        ours, theirs = pair()
        pid = self._launcher.start(node.name, theirs)
        theirs.close()
        control = Connection(ours, shared=False)
        self._processes[node.name] = Process(node, pid, control)
        callees = node.callees()
        fds = [self._serve(node.name, callee).detach() for callee in callees for _ in range(2)]
        boards = {callee: self._board_client(callee) for callee in callees if callee in self._boards}
        message = Start(
            node=cloudpickle.dumps(node, protocol=pickle.HIGHEST_PROTOCOL),
            context=context,
            callees=callees,
            boards=boards,
            path=sys.path,
            held=self._starting,
        )
        descriptors = fds + [self._boards[callee] for callee in boards]
        try:
            for at in range(0, len(descriptors), DESCRIPTORS):
                control.send(("descriptors",), descriptors[at : at + DESCRIPTORS])
            control.send(message)
        except Closed:
            pass  # it died at once: that will be heard
        for fd in fds:
            os.close(fd)
        if context.restarts:
            self._reconnect(node.name)

    def _begin(self) -> None:
        self._starting = False
        for process in self._processes.values():
            with contextlib.suppress(Closed):
                process.control.send(("begin",))

    def hear(self, timeout: float) -> list[Event]:
        poll = select.poll()
        live = {process.control.fileno(): process for process in self._processes.values()}
        for fd in live:
            poll.register(fd, select.POLLIN)
        told = [self._listen(live[fd]) for fd, _ in poll.poll(timeout * 1e3)]
        if (ending := self._launcher.revive()) is not None:
            self.supervisor.lost(ZYGOTE, ending)
            self.supervisor.started(ZYGOTE.name)
        return [event for event in told if event is not None]

    def add(self, *nodes: Node) -> None:
        limits.check(self.program, limits.Limits.here(), more=nodes)
        super().add(*nodes)

    def stop(self, name: str) -> None:
        if name in self._processes:
            with contextlib.suppress(Closed):
                self._processes[name].control.send(("stop",))

    def kill(self, name: str) -> None:
        if name in self._processes:
            self._launcher.kill(self._processes[name].pid)

    def _listen(self, process: Process) -> Event | None:
        """Take in one message of a node. What it told of its failure is kept until it is gone."""
        try:
            event: Event = process.control.receive()[0]
        except Closed:
            process.control.close()
            self._processes.pop(process.node.name, None)
            return process.failure or Lost(process.node.name, self._launcher.ending(process.pid))
        if isinstance(event, Lost):
            process.failure = event
            return None
        return event

    # ---- connecting

    def _board_client(self, name: str) -> Any:
        """The class through which callers of this node use memory that they share with each other."""
        return getattr(self.program.nodes[name].factory, "shared_client")  # noqa: B009 (a class attribute of a callable)

    def _serve(self, caller: str, callee: str) -> socket.socket:
        """A stream to `callee`: its end is sent there, ours is returned."""
        ours, theirs = pair()
        if callee in self._processes:
            try:
                self._processes[callee].control.send(("serve", caller), [theirs.fileno()])
            except Closed:
                pass
        theirs.close()
        return ours

    def _reconnect(self, name: str) -> None:
        """Give those who call a restarted node new streams to it."""
        if name in self._lanes:
            for lane in self._lanes[name]:
                lane.replace(Connection(self._serve(MAIN, name)))
        for process in self._processes.values():
            if name in process.node.callees():
                fds = [self._serve(process.node.name, name).detach() for _ in range(2)]
                try:
                    process.control.send(("reconnect", name), fds)
                except Closed:
                    pass
                for fd in fds:
                    os.close(fd)


__all__ = ["LocalRun", "RunFailed", "cool", "warm"]
