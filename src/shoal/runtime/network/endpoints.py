"""Meeting by address: how a node finds another one's process where no parent can hand over connected sockets.

Nodes of one machine meet on an AF_UNIX socket (or, where that cannot be, on the loopback interface) and share memory;
between machines everything travels on TCP, encrypted. Both ends prove that they belong to the run before anything is
unpickled, and no proof is good for a second time.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass

from shoal.runtime.network.identity import Identity
from shoal.runtime.network.secure import SecureConnection
from shoal.runtime.network.transport import Closed, Connection, pair

PATIENCE = 20.0  # seconds to connect and to be let in
ATTEMPTS = 3  # to be let in: a callee that is beset by strangers may give up on a slow caller
ABSTRACT = sys.platform == "linux"  # AF_UNIX names that are not files
_SIZE = 32  # bytes of a challenge and of a proof

Handshake = Generator[None, None, None]  # yields whenever it waits for the other end


@dataclass(frozen=True)
class Endpoint:
    """Where a node's process answers calls."""

    near: str | None  # for those on its own machine
    host: str
    port: int
    secure: bool = True  # whether TCP is encrypted

    @property
    def name(self) -> bytes:
        """Part of every proof, so that none can be passed on to another node."""
        return f"{self.near} {self.host} {self.port}".encode()


NOWHERE = Endpoint(None, "127.0.0.1", 0)


class Refused(OSError):
    """The other end does not belong to the run."""


def loopback(host: str) -> bool:
    """Whether an address cannot be reached, or overheard, from other machines."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ---- proving that one belongs to the run -----------------------------------------------------------------------------


def meet(sock: socket.socket, endpoint: Endpoint, identity: Identity, serving: bool) -> tuple[Connection, Handshake]:
    """A connection, and the handshake that must come to its end before it is used; `OSError` when a proof fails."""
    if sock.family == socket.AF_UNIX:
        _check_user(sock)
    elif endpoint.secure:
        secure = SecureConnection(sock, identity.context(serving), serving)
        return secure, secure.handshake()
    prove = _let_in if serving else _ask_in
    return Connection(sock, shared=sock.family == socket.AF_UNIX), prove(sock, endpoint.name, identity.secret)


def _check_user(sock: socket.socket) -> None:
    """Nodes of a run on one machine are processes of one user."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        raise Refused("the other end is another user's")


def _ask_in(sock: socket.socket, name: bytes, secret: bytes) -> Handshake:
    """The caller's side. The secret itself never travels: each end answers the other's challenge."""
    challenge = yield from _take(sock)
    ours = secrets.token_bytes(_SIZE)
    sock.sendall(ours + _proof(secret, b"caller", name, challenge, ours))
    theirs = yield from _take(sock)
    if not hmac.compare_digest(theirs, _proof(secret, b"callee", name, challenge, ours)):
        raise Refused("the callee does not know the secret")


def _let_in(sock: socket.socket, name: bytes, secret: bytes) -> Handshake:
    challenge = secrets.token_bytes(_SIZE)
    sock.sendall(challenge)
    theirs = yield from _take(sock)
    proof = yield from _take(sock)
    if not hmac.compare_digest(proof, _proof(secret, b"caller", name, challenge, theirs)):
        raise Refused("the caller does not know the secret")
    sock.sendall(_proof(secret, b"callee", name, challenge, theirs))


def _proof(secret: bytes, role: bytes, name: bytes, challenge: bytes, answer: bytes) -> bytes:
    return hmac.digest(secret, b"".join([role, challenge, answer, name]), "sha256")


def _take(sock: socket.socket) -> Generator[None, None, bytes]:
    taken = b""
    while len(taken) < _SIZE:
        yield
        part = sock.recv(_SIZE - len(taken))
        if not part:
            raise Closed("the other end has hung up")
        taken += part
    return taken


# ---- calling ------------------------------------------------------------------------------------------------------


def connect(endpoint: Endpoint, identity: Identity) -> Connection:
    """A stream to a node. Where nobody of the run listens it has ended already: calls on it raise `NodeDied`."""
    deadline = time.monotonic() + PATIENCE
    for _ in range(ATTEMPTS):
        try:
            sock = _reach(endpoint, deadline)
        except OSError:
            break
        try:
            connection, handshake = meet(sock, endpoint, identity, serving=False)
            _follow(handshake, sock, deadline)
        except OSError:
            sock.close()
            continue
        return settle(connection)
    ours, theirs = pair()
    theirs.close()
    return Connection(ours, shared=False)


def _reach(endpoint: Endpoint, deadline: float) -> socket.socket:
    if endpoint.near is not None and ABSTRACT:
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            near.connect(endpoint.near)
            _check_user(near)
            return near
        except OSError:  # of another machine, of another user, or gone
            near.close()
    return socket.create_connection((endpoint.host, endpoint.port), max(0.1, deadline - time.monotonic()))


def _follow(handshake: Handshake, sock: socket.socket, deadline: float) -> None:
    """Let a handshake run its course, waiting for the other end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    for _ in handshake:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise TimeoutError


def settle(connection: Connection) -> Connection:
    """From the handshake to its use: from now on whoever waits on it waits as long as it takes."""
    sock = connection.sock
    sock.settimeout(None)
    if sock.family == socket.AF_UNIX:
        return connection
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that loses its power says no farewell: find out within half a minute.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return connection
