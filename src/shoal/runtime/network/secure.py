"""Messages over TLS: a connection whose bytes are encrypted on their way, between ends that have proven themselves.

The session works on memory, apart from the socket, so that one thread can send while another one waits for an answer.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

from shoal.runtime.network.transport import HEADER, Closed, Connection

CHUNK = 1 << 18  # bytes that are encrypted, and sent, at a time
_WELCOME = b"!"  # the callee has found the caller's certificate good


class SecureConnection(Connection):
    """One end of a TLS stream. Its handshake must have ended before anything is sent or received."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, serving: bool) -> None:
        super().__init__(sock, shared=False)
        self._serving = serving
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=serving)
        self._using = threading.Lock()  # a session is used by one thread at a time
        self._buffer = memoryview(bytearray(CHUNK))

    def handshake(self) -> Generator[None, None, None]:
        """Yields whenever it waits for the other end; `OSError` when that does not belong to the run."""
        while True:
            try:
                self._session.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                yield
                self._feed()
        if self._serving:
            self._session.write(_WELCOME)
            self._flush()
            return
        self._flush()
        welcome = bytearray(len(_WELCOME))
        while not self._decrypt(memoryview(welcome)):
            yield
            self._feed()

    def ready(self, timeout: float | None = 0.0) -> bool:
        return self._session.pending() > 0 or self._incoming.pending > 0 or super().ready(timeout)

    def _write(self, parts: list[memoryview], fds: Sequence[int], while_full: Callable[[], None] | None) -> None:
        for piece in _pieces(parts):
            with self._using:
                while piece:
                    piece = piece[self._session.write(piece) :]
            if self._outgoing.pending >= CHUNK:
                self._send_encrypted(while_full)
        self._send_encrypted(while_full)

    def _send_encrypted(self, while_full: Callable[[], None] | None) -> None:
        with self._using:
            encrypted = self._outgoing.read()
        super()._write([memoryview(encrypted)], (), while_full)

    def _read_header(self) -> tuple[bytes, list[int]]:
        return bytes(self._read(HEADER.size)), []

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._decrypt(view)
                if not count:
                    self._feed()
            except OSError as error:
                raise Closed(str(error)) from None
            view = view[count:]
        return data

    def _decrypt(self, view: memoryview) -> int:
        """Bytes that could be read from what has come; 0 when more must come first."""
        with self._using:
            try:
                count = self._session.read(len(view), view)
            except ssl.SSLWantReadError:
                return 0
        if not count:
            raise Closed("the other end closed the connection")
        return int(count)

    def _feed(self) -> None:
        count = self.sock.recv_into(self._buffer)
        if not count:
            raise Closed("the other end closed the connection")
        with self._using:
            self._incoming.write(self._buffer[:count])

    def _flush(self) -> None:
        """What the handshake has to say; it is little, and fits into the socket's buffer."""
        if self._outgoing.pending:
            self.sock.sendall(self._outgoing.read())


def _pieces(parts: list[memoryview]) -> Iterator[memoryview]:
    for part in parts:
        flat = part.cast("B") if part.nbytes else part
        for start in range(0, part.nbytes, CHUNK):
            yield flat[start : start + CHUNK]
