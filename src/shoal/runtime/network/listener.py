"""The answering end of meeting by address: lets in who belongs to the run, and keeps strangers cheap."""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.runtime.network.endpoints import ABSTRACT, Endpoint, Handshake, loopback, meet, settle
from shoal.runtime.network.identity import Identity
from shoal.runtime.network.transport import Connection

BACKLOG = 4096
MOST = 256  # callers who are proving themselves; more than these wait to be accepted
PROVING = 2.0  # seconds that a caller may take for it
CROWDED = 0.25  # seconds, while others wait


@dataclass
class Visitor:
    """A caller who has not proven yet that it belongs to the run."""

    connection: Connection
    handshake: Handshake
    since: float = field(default_factory=time.monotonic)


class Listener:
    """Listens at once; callers are let in, each into a thread of `serve`, after `open`."""

    def __init__(
        self,
        identity: Identity,
        host: str,
        serve: Callable[[Connection], None],
        near: bool = ABSTRACT,
        secure: bool | None = None,  # whether TCP is encrypted; by default where others could overhear it
    ) -> None:
        self._identity, self._serve = identity, serve
        self._sockets = [socket.create_server((host, 0), backlog=BACKLOG)]
        name = None
        if near:
            name = f"\0shoal-{secrets.token_hex(16)}"
            self._sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._sockets[-1].bind(name)
            self._sockets[-1].listen(BACKLOG)
        secure = not loopback(host) if secure is None else secure
        address, port = self._sockets[0].getsockname()[:2]
        self.endpoint = Endpoint(name, address, port, secure)
        self._visitors: dict[socket.socket, Visitor] = {}  # the longest here first
        self._selector = selectors.DefaultSelector()
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="listener")

    def open(self) -> None:
        """From now on callers are let in; by now this process can prove itself to them."""
        for sock in self._sockets:
            sock.setblocking(False)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._accept_more(True)
        self._thread.start()

    def close(self) -> None:
        self._end.close()
        if self._thread.ident is None:
            self._shut()
        else:
            self._thread.join()

    # ---- the listener's thread

    def _watch(self) -> None:
        accepting = True
        while True:
            wait = self._expire()
            if accepting != (len(self._visitors) < MOST):
                accepting = not accepting
                self._accept_more(accepting)
            for key, _ in self._selector.select(wait):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._ended:
                    return self._shut()
                if sock in self._sockets:
                    self._accept(sock)
                else:
                    self._hear(sock)

    def _accept_more(self, yes: bool) -> None:
        for sock in self._sockets:
            if yes:
                self._selector.register(sock, selectors.EVENT_READ)
            else:
                self._selector.unregister(sock)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionError):  # the caller has gone already
            return
        except OSError:  # no descriptor is left: the caller waits until there is one
            time.sleep(0.05)
            return
        try:
            sock.setblocking(False)
            visitor = Visitor(*meet(sock, self.endpoint, self._identity, serving=True))
            next(visitor.handshake)
        except (OSError, StopIteration):
            sock.close()
            return
        self._visitors[sock] = visitor
        self._selector.register(sock, selectors.EVENT_READ)

    def _hear(self, sock: socket.socket) -> None:
        """A caller has said something: it has proven itself, failed to, or must say more."""
        visitor = self._visitors[sock]
        try:
            next(visitor.handshake)
        except StopIteration:
            self._forget(sock)
            self._let_in(settle(visitor.connection))
        except OSError:
            self._turn_away(sock)

    def _let_in(self, connection: Connection) -> None:
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="caller").start()
        except RuntimeError:  # no more threads on this machine
            connection.close()

    def _expire(self) -> float | None:
        """Turn away who takes too long; seconds until the next one does."""
        patience = CROWDED if len(self._visitors) >= MOST else PROVING
        now = time.monotonic()
        for sock, visitor in list(self._visitors.items()):
            left = visitor.since + patience - now
            if left > 0:
                return left
            self._turn_away(sock)
        return None

    def _forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._visitors[sock]

    def _turn_away(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()

    def _shut(self) -> None:
        self._selector.close()
        for sock in [*self._sockets, *self._visitors, self._ended]:
            sock.close()
