"""A node that answers by address, and those who may and may not call it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shoal.program import Client, Context
from shoal.runtime.network.endpoints import ABSTRACT, Endpoint
from shoal.runtime.network.identity import Authority, Identity
from shoal.runtime.network.listener import Listener
from shoal.runtime.network.presence import make_lanes
from shoal.runtime.network.rpc import serve
from shoal.runtime.network.transport import Connection

AUTHORITY = Authority()


class Echo:
    def echo(self, value: Any) -> Any:
        return value


@contextlib.contextmanager
def listening(target: Any = None, near: bool = ABSTRACT, secure: bool | None = None) -> Iterator[Listener]:
    def answer(connection: Connection) -> None:
        serve(target or Echo(), connection, Context("echo"))

    listener = Listener(AUTHORITY.identity(), "127.0.0.1", answer, near=near, secure=secure)
    listener.open()
    yield listener
    listener.close()


def client_of(endpoint: Endpoint, identity: Identity | None = None) -> Client:
    return Client("echo", *make_lanes("echo", endpoint, identity or AUTHORITY.identity()))
