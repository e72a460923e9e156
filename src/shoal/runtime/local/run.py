"""The parent of a local run: an agent of this machine, and the streams by which its nodes call each other."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from typing import Any

import cloudpickle

from shoal.program import Client, Context, Node, Program
from shoal.runtime.host import BEAT
from shoal.runtime.local import limits
from shoal.runtime.local.agent import ZYGOTE, Agent, Printed, cool, warm
from shoal.runtime.local.node import Listening, Start
from shoal.runtime.local.zygote import Zygote
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.transport import HAS_MEMFD, Connection, pair
from shoal.runtime.processes import ProcessRun
from shoal.runtime.restarts import RunFailed, Supervisor
from shoal.runtime.supervision import Event, Lost

MAIN = "main"
LAUNCHER = Node(ZYGOTE, Zygote, restart=True)  # no node of the program, but lost like one: it comes back at once


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
        self._agent = Agent(fork)
        try:
            for node in program.nodes.values():
                if HAS_MEMFD and hasattr(node.factory, "shared_client"):
                    self._agent.add_board(node.name)
            self._supervision.start_all()
            self._begin()
        except BaseException:
            self.close()
            raise

    # ---- using it

    def make_client(self, name: str, calls: Client) -> Any:
        boards = self._agent.boards
        return self._board_client(name)(calls, boards[name]) if name in boards else calls

    def make_lanes(self, name: str) -> tuple[LocalLane, LocalLane]:
        one, other = (LocalLane(name, Connection(self._serve(MAIN, name))) for _ in range(2))
        return one, other

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._agent.processes.items()}

    def close(self) -> None:
        self._agent.close()
        self.close_lanes()

    # ---- what the supervision asks for

    beats = BEAT

    def can_start(self) -> bool:
        return self._agent.ready()

    def start(self, node: Node, context: Context) -> None:
        callees = node.callees()
        order = Start(
            node=cloudpickle.dumps(node, protocol=pickle.HIGHEST_PROTOCOL),
            context=context,
            callees=callees,
            boards={callee: self._board_client(callee) for callee in callees if callee in self._agent.boards},
            path=sys.path,
            held=self._starting,
        )
        fds = [self._serve(node.name, callee).detach() for callee in callees for _ in range(2)]
        self._agent.start(order, fds)
        for fd in fds:
            os.close(fd)
        if context.restarts:
            self._reconnect(node.name)

    def _begin(self) -> None:
        self._starting = False
        for name in self._agent.processes:
            self._agent.order(name, ("begin",))

    def hear(self, timeout: float) -> list[Event]:
        events: list[Event] = []
        for told in self._agent.hear(timeout):
            if isinstance(told, Lost) and told.node == ZYGOTE:
                self.supervisor.lost(LAUNCHER, told.reason)
                self.supervisor.started(ZYGOTE)
            elif not isinstance(told, Listening | Printed):
                events.append(told)
        return events

    def add(self, *nodes: Node) -> None:
        limits.check(self.program, limits.Limits.here(), more=nodes)
        super().add(*nodes)

    def stop(self, name: str) -> None:
        self._agent.order(name, ("stop",))

    def kill(self, name: str) -> None:
        self._agent.kill(name)

    # ---- connecting

    def _board_client(self, name: str) -> Any:
        """The class through which callers of this node use memory that they share with each other."""
        return getattr(self.program.nodes[name].factory, "shared_client")  # noqa: B009 (a class attribute of a callable)

    def _serve(self, caller: str, callee: str) -> socket.socket:
        """A stream to `callee`: its end is sent there, ours is returned."""
        ours, theirs = pair()
        self._agent.order(callee, ("serve", caller), [theirs.fileno()])
        theirs.close()
        return ours

    def _reconnect(self, name: str) -> None:
        """Give those who call a restarted node new streams to it."""
        if name in self._lanes:
            for lane in self._lanes[name]:
                lane.replace(Connection(self._serve(MAIN, name)))
        for caller, process in self._agent.processes.items():
            if name in process.callees:
                fds = [self._serve(caller, name).detach() for _ in range(2)]
                self._agent.order(caller, ("reconnect", name), fds)
                for fd in fds:
                    os.close(fd)


__all__ = ["LocalRun", "RunFailed", "cool", "warm"]
