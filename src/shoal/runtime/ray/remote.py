"""A node's life in a process that takes its orders by method calls (a Ray actor) and answers other nodes on sockets."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any

from shoal import sync
from shoal.program import Client, Context, Node
from shoal.runtime import devices, host
from shoal.runtime.network.endpoints import Endpoint, connect
from shoal.runtime.network.identity import Identity, Trust
from shoal.runtime.network.listener import Listener
from shoal.runtime.network.rpc import LocalLane, serve
from shoal.runtime.network.transport import Connection
from shoal.runtime.supervision import Beat, Event, Finished

BEAT = 5.0  # seconds between two signs of life: each costs a call by Ray


@dataclass(frozen=True)
class Stopped:
    """The last thing that a node tells."""


class RemoteNode:
    """Public methods are the driver's orders: `listen`, then `begin`, at last `stop`, and `event` all the time."""

    ORDERS = 4  # at a time: `event` waits, `stop` and `reconnect` do not

    def __init__(self, trust: Trust, path: list[str]) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self._identity = Identity(trust)
        self._listener: Listener | None = None
        self._events: queue.SimpleQueue[Event | Stopped] = queue.SimpleQueue()
        self._lanes: dict[str, tuple[LocalLane, LocalLane]] = {}
        self._connected = threading.Event()
        self._built = threading.Event()
        self._stopping = threading.Event()
        self._target: Any = None
        self._context = Context()
        self._heart = host.Heart()

    def listen(self, host_address: str) -> tuple[str, Endpoint, int, bytes]:
        """Where this node will answer, its process, and its public key, for the driver to sign."""
        self._listener = Listener(self._identity, host_address, self._serve)
        return "listening", self._listener.endpoint, os.getpid(), self._identity.public_key

    def begin(self, node: bytes, context: Context, callees: dict[str, Endpoint], certificate: bytes) -> None:
        assert self._listener is not None
        self._context = replace(context, address=self._listener.endpoint.host)
        self._identity.certify(certificate)
        self._listener.open()
        self._lanes = {callee: make_lanes(callee, endpoint, self._identity) for callee, endpoint in callees.items()}
        self._connected.set()
        threading.Thread(target=self._live, args=(node,), name=context.name, daemon=True).start()
        threading.Thread(target=self._give_signs, name="heart", daemon=True).start()

    def event(self) -> Event | Stopped:
        """The next thing the driver should know; waits for it."""
        return self._events.get()

    def reconnect(self, callee: str, endpoint: Endpoint) -> None:
        """The callee was started again: later calls go to the newcomer."""
        self._connected.wait()  # Ray may run this order before `begin`
        for lane in self._lanes[callee]:
            lane.replace(connect(endpoint, self._identity))

    def stop(self) -> None:
        self._stopping.set()
        sync.end_process()
        if self._target is None or hasattr(self._target, "step"):
            for lanes in self._lanes.values():
                for lane in lanes:
                    lane.hang_up()  # wakes a step that waits for an answer

    def _live(self, pickled: bytes) -> None:
        try:
            node: Node = pickle.loads(pickled)
            host.keep_memory()
            host.prepare(self._context, node.resources.threads)  # after unpickling has imported torch, or not
            devices.take(node, self._context)
            self._target = node.build(lambda name: Client(name, *self._lanes[name]))
            self._built.set()
            if self._heart.drive(self._target, self._stopping.is_set):
                self._events.put(Finished(node.name))
            self._stopping.wait()
            host.close(self._target)
        except BaseException as error:  # an environment may raise anything
            if not self._stopping.is_set():
                host.close_quietly(self._target)
                self._events.put(host.failure(self._context.name, error, self._heart.progress))
        self._events.put(Stopped())

    def _give_signs(self) -> None:
        while not self._stopping.wait(BEAT):
            beat = Beat(self._context.name, *self._heart.beat(BEAT))
            if self._events.empty():  # the driver listens
                self._events.put(beat)

    def _serve(self, connection: Connection) -> None:
        self._built.wait()
        serve(self._target, connection, self._context)


def make_lanes(callee: str, endpoint: Endpoint, identity: Identity) -> tuple[LocalLane, LocalLane]:
    """Waiting calls and futures, each on a stream of its own."""
    return LocalLane(callee, connect(endpoint, identity)), LocalLane(callee, connect(endpoint, identity))
