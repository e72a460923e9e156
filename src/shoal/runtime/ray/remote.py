"""An agent on a machine of the cluster: a Ray actor that forks nodes there and takes its orders on a stream of its own.

Ray carries public keys and certificates only. Nodes, their states and the run's secret come over TLS.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray as typed_ray

from shoal.runtime.host import BEAT
from shoal.runtime.local.agent import ZYGOTE, Agent, Printed
from shoal.runtime.local.node import Start, Told
from shoal.runtime.network.endpoints import Endpoint
from shoal.runtime.network.identity import Identity, Trust
from shoal.runtime.network.listener import Listener
from shoal.runtime.network.transport import Closed, Connection
from shoal.runtime.ray.shipping import Parcel, installed
from shoal.runtime.supervision import Beat

ray: Any = typed_ray  # its own types are incomplete
Word = Told | Printed  # what an agent tells
LISTENING = 30.0  # seconds after which an agent to which no driver has come ends
GATHERING = 0.25  # seconds for which signs of life and prints are gathered before they are told
ENDING = 5.0  # seconds in which Ray should have ended a process that has nothing left to do
UNHEARD = 20.0  # seconds after which data that nobody acknowledges say that the other machine is gone


@dataclass(frozen=True)
class Welcome:
    """The first thing that a driver says to an agent."""

    path: list[str]  # where modules are found
    folder: str | None = None  # in which nodes work; None: that of the parcel, or Ray's
    parcel: Parcel | None = None  # files of the user's own, for another machine


class AgentLoop:
    """An agent with a thread of its own, which takes orders from other threads and tells what happens."""

    def __init__(self, agent: Agent, tell: Callable[[list[Word]], None]) -> None:
        self._agent, self._tell = agent, tell
        self._orders: collections.deque[tuple[Any, ...]] = collections.deque()
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)

    def put(self, *order: Any) -> None:
        self._orders.append(order)
        with contextlib.suppress(OSError):  # full of the same, or closed
            self._waker.send(b".")

    def run(self) -> None:
        """Until it is told to end, or its words cannot be told."""
        gathered: list[Word] = []
        due = 0.0
        try:
            while True:
                gathered += self._agent.hear(
                    max(0.0, due - time.monotonic()) if gathered else BEAT, self._wake.fileno()
                )
                now = time.monotonic()
                if now >= due or any(not isinstance(word, Beat | Printed) for word in gathered):
                    self._tell(gathered)  # also nothing is a sign of life
                    gathered, due = [], now + (GATHERING if gathered else BEAT)
                if not self._obey():
                    return
        finally:
            self._agent.close()
            self._wake.close()
            self._waker.close()

    def _obey(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096, socket.MSG_DONTWAIT)
        while self._orders:
            match self._orders.popleft():
                case ("start", Start() as start):
                    self._agent.start(start)
                case ("order", name, order):
                    self._agent.order(name, order)
                case ("kill", name):
                    self._agent.kill(name)
                case ("end",):
                    return False
        return True


class AgentActor:
    """What Ray starts on a machine."""

    def __init__(self, authority: bytes, host: str, variables: dict[str, str]) -> None:
        """`authority`: the certificate with which the run's driver signs; `variables`: of its nodes' environment."""
        os.environ.update(variables)
        self._agent = Agent(prints=True)  # the zygote imports while the driver signs
        self._identity = Identity(Trust(b"", authority))
        self._listener = Listener(self._identity, host, self._serve, near=False, secure=True)
        self._called = threading.Lock()
        self._served = False

    def listen(self) -> tuple[Endpoint, bytes, int, dict[str, str]]:
        """Where, its public key, its process, and what is installed here."""
        return self._listener.endpoint, self._identity.public_key, os.getpid(), installed()

    def join(self, certificate: bytes) -> None:
        """From now on the driver can call."""
        self._identity.certify(certificate)
        self._listener.open()
        threading.Timer(LISTENING, self._end_unless_served).start()

    def _end_unless_served(self) -> None:
        if not self._served:
            os._exit(1)

    def _serve(self, connection: Connection) -> None:
        """Follow the driver's orders until it hangs up. There is but one driver."""
        with self._called:
            if self._served:
                connection.close()
                return
            self._served = True
        watch_closely(connection)
        loop = AgentLoop(self._agent, connection.send)
        try:
            welcome = connection.receive()[0]
            assert isinstance(welcome, Welcome)
            sys.path.extend(entry for entry in welcome.path if entry not in sys.path)
            threading.Thread(target=self._run, args=(loop, connection), name="agent").start()
            first, folder = self._unpack(welcome, connection)
            while True:
                order = connection.receive()[0]
                if order[0] == "start":
                    order = ("start", replace(order[1], first=first, folder=folder))
                loop.put(*order)
        except Closed:  # the driver is gone, or has what it wanted
            loop.put("end")

    def _unpack(self, welcome: Welcome, connection: Connection) -> tuple[list[str], str | None]:
        """What was shipped, beside Ray's own files, with which it goes: where modules are looked for first, and the
        folder to work in."""
        if welcome.parcel is None:
            return [], welcome.folder
        try:
            return welcome.parcel.unpack(ray._private.worker._global_node.get_session_dir_path())
        except OSError as error:
            connection.send([Printed(ZYGOTE, f"the run's own files could not be unpacked: {error}\n")])
            raise Closed from error

    def _run(self, loop: AgentLoop, connection: Connection) -> None:
        try:
            with contextlib.suppress(Closed):
                loop.run()
        finally:
            connection.shut_down()
            threading.Timer(ENDING, os._exit, (0,)).start()


def watch_closely(connection: Connection) -> None:
    """Find out sooner than others that the other machine is gone: by data, or probes, that it does not acknowledge."""
    for option, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(UNHEARD * 1e3)),
    ):
        if hasattr(socket, option):
            connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
