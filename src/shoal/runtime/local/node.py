"""The life of one node process: build the object, serve its callers, drive its step, end with the run.

Started by the zygote (fork) or, where forking is unsafe, as `python -m shoal.runtime.local.node FD`. Its callers and
callees are connected by their parent, or, on a cluster, meet by address.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shoal import sync
from shoal.program import Client, Context, Node, set_current
from shoal.runtime import devices, host
from shoal.runtime.network.rpc import LocalLane, serve
from shoal.runtime.network.transport import Closed, Connection
from shoal.runtime.supervision import Beat, Event, Finished

if TYPE_CHECKING:  # needs a library that only clusters need
    from shoal.runtime.network.endpoints import Endpoint
    from shoal.runtime.network.presence import Network, Presence

GRACE = 3.0  # seconds a node may take to end by itself


@dataclass
class Start:
    """The first order to a node process. File descriptors come along: two per callee, one per board, its own board, one
    to print to."""

    node: bytes  # a pickled Node
    context: Context
    callees: list[str]
    boards: dict[str, Any] = field(default_factory=dict)  # callee -> client class over shared memory
    path: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)  # where modules are looked for before all others
    folder: str | None = None  # to work in; None: that of the zygote
    held: bool = False  # it begins at a further order: those who ran already would keep the others from being started
    shares: bool = False  # it gets the board of its own callers
    network: Network | None = None  # where nodes meet by address: they are told at that further order
    prints: bool = False  # what it prints goes to a descriptor of its own


@dataclass(frozen=True)
class Listening:
    """A node's process can be called, as soon as its key is signed."""

    node: str
    endpoint: Endpoint
    public_key: bytes
    pid: int


Told = Event | Listening  # by a node's process


class NodeProcess:
    def __init__(self, control: Connection) -> None:
        self._control = control
        self._sending = threading.Lock()
        self._lanes: dict[str, tuple[LocalLane, LocalLane]] = {}
        self._boards: dict[str, tuple[Any, int]] = {}
        self._begin = threading.Event()
        self._built = threading.Event()
        self._stopping = threading.Event()
        self._target: Any = None
        self._context = Context()
        self._heart = host.Heart()
        self._shared: int | None = None
        self._presence: Presence | None = None
        self._callees: dict[str, Endpoint] = {}
        self._moved: queue.SimpleQueue[tuple[str, Endpoint]] = queue.SimpleQueue()  # callees that were started again

    def run(self) -> None:
        start, fds = self._first_order()
        try:
            node = self._accept(start, fds)
            threading.Thread(target=self._listen, daemon=True, name="control").start()
            if start.network is not None:
                self._appear(start.network)
            if start.held:
                self._begin.wait()
            if not self._stopping.is_set():
                self._meet_callees()
                self._target = node.build(self._client)
                if self._shared is not None:
                    self._target.share(self._shared)
                self._built.set()
            if self._heart.drive(self._target, self._stopping.is_set):
                self._tell(Finished(node.name))
            self._stopping.wait()
            host.close(self._target)
        except BaseException as error:  # an environment may raise anything
            if not self._stopping.is_set():
                loss = host.failure(start.context.name, error, self._heart.progress)
                threading.Timer(GRACE, os._exit, (1,)).start()
                host.close_quietly(self._target)  # environments may have started processes of their own
                self._tell(loss)
                sys.stderr.flush()
                os._exit(1)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _first_order(self) -> tuple[Start, list[int]]:
        """What to be, and the file descriptors for it, which may need messages of their own before."""
        descriptors: list[int] = []
        while True:
            message, fds = self._control.receive()
            descriptors += fds
            if isinstance(message, Start):
                return message, descriptors

    def _accept(self, start: Start, fds: list[int]) -> Node:
        if start.folder is not None:
            os.chdir(start.folder)
        sys.path[:0] = start.first
        for entry in start.path:
            if entry not in sys.path:
                sys.path.append(entry)
        for callee in start.callees:
            lanes = [LocalLane(callee, _connection(fds.pop(0))) for _ in range(2)]
            self._lanes[callee] = (lanes[0], lanes[1])
        for callee, make in start.boards.items():
            self._boards[callee] = (make, fds.pop(0))
        if start.shares:
            self._shared = fds.pop(0)
        if start.prints:
            _print_to(fds.pop(0))
        self._context = start.context
        node: Node = pickle.loads(start.node)
        host.name_process(node.name)
        host.keep_memory()
        host.prepare(start.context, node.resources.threads)  # after unpickling has imported torch, or not
        devices.take(node, start.context)
        return node

    def _appear(self, network: Network) -> None:
        """Listen, and tell where."""
        from shoal.runtime.network.presence import Presence

        self._context = replace(self._context, address=network.host)
        set_current(self._context)
        self._presence = Presence(network, self._answer)
        self._tell(Listening(self._context.name, self._presence.endpoint, self._presence.public_key, os.getpid()))

    def _meet_callees(self) -> None:
        if self._presence is None:  # the parent has connected them
            return
        for callee, endpoint in self._callees.items():
            self._lanes[callee] = self._presence.lanes(callee, endpoint)
        threading.Thread(target=self._follow_callees, daemon=True, name="callees").start()

    def _follow_callees(self) -> None:
        """Later calls of one that was started again go to the newcomer. To reach it may take long, which must not hold
        up the signs of life."""
        assert self._presence is not None
        while True:
            callee, endpoint = self._moved.get()
            for lane in self._lanes[callee]:
                lane.replace(self._presence.connect(endpoint))

    def _client(self, name: str) -> Any:
        client = Client(name, *self._lanes[name])
        if name in self._boards:
            make, fd = self._boards[name]
            return make(client, fd)
        return client

    def _tell(self, event: Told) -> None:
        with self._sending:
            try:
                self._control.send(event)
            except Closed:
                os._exit(1)

    def _listen(self) -> None:
        """Follow the parent's orders, and give signs of life. When the parent is gone, so is this process."""
        next_beat = 0.0
        while True:
            try:
                if not self._control.ready(max(0.0, next_beat - time.monotonic())):
                    next_beat = time.monotonic() + host.BEAT
                    self._beat()
                    continue
                message, fds = self._control.receive()
            except Closed:
                os._exit(1)
            match message:
                case ("serve", caller):
                    threading.Thread(target=self._serve, args=(fds[0],), daemon=True, name=f"from {caller}").start()
                case ("reconnect", callee):
                    for lane, fd in zip(self._lanes[callee], fds):
                        lane.replace(_connection(fd))
                case ("moved", callee, endpoint):
                    self._moved.put((callee, endpoint))
                case ("join", certificate, callees):
                    assert self._presence is not None
                    self._presence.join(certificate)
                    self._callees = callees
                    self._begin.set()
                case ("begin",):
                    self._begin.set()
                case ("stop",):
                    self._stopping.set()
                    sync.end_process()
                    self._begin.set()
                    threading.Timer(GRACE, os._exit, (0,)).start()
                    if self._target is not None and not hasattr(self._target, "step"):
                        continue  # the main thread closes it
                    for lanes in self._lanes.values():
                        for lane in lanes:
                            lane.hang_up()  # wakes a step that waits for an answer

    def _beat(self) -> None:
        """Where the parent has not listened for long, it goes without: nothing here may wait for it."""
        beat = Beat(self._context.name, *self._heart.beat())
        if self._control.writable():
            self._tell(beat)

    def _serve(self, fd: int) -> None:
        self._answer(_connection(fd))

    def _answer(self, connection: Connection) -> None:
        self._built.wait()
        serve(self._target, connection, self._context)


def _print_to(fd: int) -> None:
    """Have whatever this process and its children print go there."""
    for number in (1, 2):
        os.dup2(fd, number)
    os.close(fd)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _connection(fd: int) -> Connection:
    return Connection(socket.socket(fileno=fd))


def main(sock: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops the run in order
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    NodeProcess(Connection(sock, shared=False)).run()


if __name__ == "__main__":
    from shoal.runtime.local.node import main as node_main  # whose `Start` is the one that arrives, not __main__'s

    node_main(socket.socket(fileno=int(sys.argv[1])))
