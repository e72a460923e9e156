"""A process among others that meet by address: its key, where it listens, and how it calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.runtime.network.endpoints import Endpoint, connect
from shoal.runtime.network.identity import Identity, Trust
from shoal.runtime.network.listener import Listener
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.transport import Connection


@dataclass(frozen=True)
class Network:
    """What a node's process is told of the run's network before it listens."""

    trust: Trust
    host: str  # the address of its machine
    encrypted: bool = True  # calls between machines


class Presence:
    """Listens at once; calls, and is called, after `join`."""

    def __init__(self, network: Network, serve: Callable[[Connection], None]) -> None:
        self._identity = Identity(network.trust)
        self._listener = Listener(self._identity, network.host, serve, secure=None if network.encrypted else False)

    @property
    def endpoint(self) -> Endpoint:
        return self._listener.endpoint

    @property
    def public_key(self) -> bytes:
        return self._identity.public_key

    def join(self, certificate: bytes) -> None:
        """With the driver's signature this process belongs to the run."""
        self._identity.certify(certificate)
        self._listener.open()

    def lanes(self, callee: str, endpoint: Endpoint) -> tuple[LocalLane, LocalLane]:
        return make_lanes(callee, endpoint, self._identity)

    def connect(self, endpoint: Endpoint) -> Connection:
        return connect(endpoint, self._identity)


def make_lanes(callee: str, endpoint: Endpoint, identity: Identity) -> tuple[LocalLane, LocalLane]:
    """Waiting calls and futures, each on a stream of its own."""
    return LocalLane(callee, connect(endpoint, identity)), LocalLane(callee, connect(endpoint, identity))
