"""Messages between a server and its workers: the gateway's own bytes, each behind its length. Nothing is pickled."""

from __future__ import annotations

import socket
import struct
from typing import Any

from shoal.gateway.wire import Message, pack, unpack

LENGTH = struct.Struct("<Q")


def framed(message: Message) -> bytes:
    data = pack(message)
    return LENGTH.pack(len(data)) + data


class Frames:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._held += data
        found = []
        while len(self._held) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._held)
            if len(self._held) < LENGTH.size + length:
                break
            found.append(unpack(bytes(memoryview(self._held)[LENGTH.size : LENGTH.size + length])))
            del self._held[: LENGTH.size + length]
        return found


def receive(connection: socket.socket) -> Message | None:
    """The next message; None where the other side has gone."""
    head = _exactly(connection, LENGTH.size)
    if head is None:
        return None
    data = _exactly(connection, LENGTH.unpack(head)[0])
    return None if data is None else unpack(bytes(data))


def _exactly(connection: socket.socket, count: int) -> Any:
    held = bytearray(count)
    view, at = memoryview(held), 0
    while at < count:
        read = connection.recv_into(view[at:])
        if not read:
            return None
        at += read
    return held
