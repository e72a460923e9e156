"""Meeting by address: how a node finds another one's process where no parent can hand over connected sockets.

Nodes of one machine meet on an AF_UNIX socket and share memory; between machines everything travels on TCP. Whoever
connects shows the run's secret before anything is unpickled.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shoal.runtime.local.transport import Connection, pair

PATIENCE = 10.0  # seconds to connect and to show the secret
ABSTRACT = sys.platform == "linux"  # AF_UNIX names that are not files


@dataclass(frozen=True)
class Endpoint:
    """Where a node's process answers calls."""

    near: str | None  # for those on its own machine
    host: str
    port: int


NOWHERE = Endpoint(None, "127.0.0.1", 0)


class Listener:
    """The answering end: hands every caller who knows the secret to `serve`, in a thread of its own."""

    def __init__(self, secret: bytes, host: str, serve: Callable[[Connection], None], near: bool = ABSTRACT) -> None:
        self._secret, self._serve = secret, serve
        self._sockets = [socket.create_server((host, 0), backlog=4096)]
        name = None
        if near:
            name = f"\0shoal-{secrets.token_hex(16)}"
            self._sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._sockets[-1].bind(name)
            self._sockets[-1].listen(4096)
        self.endpoint = Endpoint(name, *self._sockets[0].getsockname()[:2])
        for sock in self._sockets:
            threading.Thread(target=self._accept, args=(sock,), daemon=True, name="listener").start()

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            sock.close()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = listening.accept()
                threading.Thread(target=self._admit, args=(caller,), daemon=True, name="caller").start()

    def _admit(self, caller: socket.socket) -> None:
        caller.settimeout(PATIENCE)
        shown = b""
        with contextlib.suppress(OSError):
            while len(shown) < len(self._secret) and (part := caller.recv(len(self._secret) - len(shown))):
                shown += part
        if not hmac.compare_digest(shown, self._secret):
            caller.close()
            return
        self._serve(_connection(caller))


def connect(endpoint: Endpoint, secret: bytes) -> Connection:
    """A stream to a node. Where nobody listens any more it has ended already: calls on it raise `NodeDied`."""
    sock = _reach(endpoint)
    with contextlib.suppress(OSError):
        sock.sendall(secret)
    return _connection(sock)


def _reach(endpoint: Endpoint) -> socket.socket:
    if endpoint.near is not None and ABSTRACT:
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            near.connect(endpoint.near)
            return near
        except OSError:  # of another machine, or gone
            near.close()
    try:
        return socket.create_connection((endpoint.host, endpoint.port), PATIENCE)
    except OSError:
        ours, theirs = pair()
        theirs.close()
        return ours


def _connection(sock: socket.socket) -> Connection:
    sock.settimeout(None)
    if sock.family == socket.AF_UNIX:
        return Connection(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that loses its power says no farewell: find out within half a minute.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return Connection(sock, shared=False)
