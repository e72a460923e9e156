"""A client of the protocol, as small as can be, for tests of servers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import websockets.sync.client

from shoal.gateway.wire import pack, unpack


class Client:
    """Says hello as a player and asks."""

    def __init__(self, port: int, *, hello: bool = True, headers: dict[str, str] | None = None, **said: Any) -> None:
        opening = websockets.sync.client.connect(
            f"ws://127.0.0.1:{port}", compression=None, additional_headers=headers, proxy=None
        )
        self.socket = opening.__enter__()
        self.greeting = unpack(self.socket.recv(10))  # type: ignore[arg-type]
        self.seq = 0
        if hello:
            self.send({"type": "hello", "protocol": 1, "role": "player", **said})
            self.welcome = self.receive()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.send(pack(message))

    def receive(self) -> dict[str, Any]:
        return unpack(self.socket.recv(20))  # type: ignore[arg-type]

    def act(self, observation: Any, **more: Any) -> dict[str, Any]:
        self.seq += 1
        self.send({"type": "act", "seq": self.seq, "observation": observation, **more})
        return self.receive()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def http(port: int, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """The status and what was answered: parsed where it is JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            status, kind, text = answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        status, kind, text = error.code, error.headers["Content-Type"], error.read()
    return status, json.loads(text) if "json" in kind else text
