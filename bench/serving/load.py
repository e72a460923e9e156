"""Clients that ask as fast as they are answered: raw sockets in one thread, so that the load is not what is measured.

Each client sends its next request when it has its answer. Websocket frames and HTTP/1.1 with kept connections.
"""

from __future__ import annotations

import base64
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

WARM_UP = 0.5  # seconds that are not counted


@dataclass(frozen=True)
class Point:
    """What was measured with so many clients."""

    clients: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    answered: int
    failed: int


Parse = Callable[[bytearray], tuple[int, bool, bytes] | None]  # bytes of the answer, whether it is one, its body


def websocket_request(payload: bytes) -> bytes:
    """A binary frame, masked with zeros."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x82, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x82, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x82, 0x80 | 127, size)
    return head + bytes(4) + payload


def parse_frame(held: bytearray) -> tuple[int, bool, bytes] | None:
    if len(held) < 2:
        return None
    kind, size, at = held[0] & 0x0F, held[1] & 0x7F, 2
    if size == 126:
        if len(held) < 4:
            return None
        size, at = struct.unpack_from("!H", held, 2)[0], 4
    elif size == 127:
        if len(held) < 10:
            return None
        size, at = struct.unpack_from("!Q", held, 2)[0], 10
    if len(held) < at + size:
        return None
    return at + size, kind == 2, bytes(held[at : at + size])


def parse_http(held: bytearray) -> tuple[int, bool, bytes] | None:
    end = held.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(held[:end]).lower()
    at = head.find(b"content-length:")
    size = int(head[at + 15 : head.find(b"\r\n", at) if head.find(b"\r\n", at) > 0 else None]) if at >= 0 else 0
    if len(held) < end + 4 + size:
        return None
    return end + 4 + size, head.startswith(b"http/1.1 200"), bytes(held[end + 4 : end + 4 + size])


def open_websocket(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    held = bytearray()
    while b"\r\n\r\n" not in held:
        held += connection.recv(65536)
    if b" 101 " not in held.split(b"\r\n", 1)[0]:
        raise ConnectionError(bytes(held[:80]))
    del held[: held.find(b"\r\n\r\n") + 4]
    while parse_frame(held) is None:  # what the server says of itself
        held += connection.recv(65536)
    return connection


def open_http(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def measure(
    port: int,
    clients: int,
    request: bytes,
    seconds: float,
    *,
    http: bool = False,
    watch: Callable[[int, bytes], None] | None = None,
) -> Point:
    """`watch` is told every answer, with its client's number."""
    parse: Parse = parse_http if http else parse_frame
    selector = selectors.DefaultSelector()
    held = [bytearray() for _ in range(clients)]
    sent = [0.0] * clients
    connections = [(open_http if http else open_websocket)(port) for _ in range(clients)]
    latencies: list[float] = []
    answered = failed = 0
    try:
        for number, connection in enumerate(connections):
            selector.register(connection, selectors.EVENT_READ, number)
            sent[number] = time.perf_counter()
            connection.sendall(request)
        begun = time.perf_counter()
        counted, end = begun + WARM_UP, begun + WARM_UP + seconds
        while (now := time.perf_counter()) < end:
            for key, _ in selector.select(1.0):
                number = key.data
                connection = connections[number]
                data = connection.recv(262144)
                if not data:
                    failed += 1
                    selector.unregister(connection)
                    continue
                held[number] += data
                while (found := parse(held[number])) is not None:
                    size, good, body = found
                    del held[number][:size]
                    now = time.perf_counter()
                    if not good:
                        failed += 1
                    elif now >= counted:
                        answered += 1
                        latencies.append(now - sent[number])
                    if watch is not None:
                        watch(number, body)
                    sent[number] = time.perf_counter()
                    connection.sendall(request)
    finally:
        for connection in connections:
            connection.close()
        selector.close()
    spent = max(now - counted, 1e-9)
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e3 if latencies else (float("nan"), float("nan"))
    return Point(clients, answered / spent, float(p50), float(p99), answered, failed)
