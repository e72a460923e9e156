"""Meeting by address: the same calls over TCP as over AF_UNIX, and strangers are turned away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.program import Client, Context, NodeDied
from shoal.runtime.endpoints import ABSTRACT, NOWHERE, Endpoint, Listener, connect
from shoal.runtime.local.rpc import LocalLane, serve
from shoal.runtime.local.transport import Closed, Connection

SECRET = b"s" * 32


class Echo:
    def echo(self, value: Any) -> Any:
        return value


def client_of(endpoint: Endpoint, secret: bytes = SECRET) -> Client:
    return Client("echo", LocalLane("echo", connect(endpoint, secret)), LocalLane("echo", connect(endpoint, secret)))


@pytest.fixture(params=["near", "far"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    """A node that is met on one machine (AF_UNIX, shared memory) or across the network (TCP)."""
    if request.param == "near" and not ABSTRACT:
        pytest.skip("abstract AF_UNIX names are Linux's")

    def answer(connection: Connection) -> None:
        serve(Echo(), connection, Context("echo"))

    listening = Listener(SECRET, "127.0.0.1", answer, near=request.param == "near")
    yield listening
    listening.close()


def test_calls_arrive_over_either_way(listener: Listener) -> None:
    client = client_of(listener.endpoint)
    array = np.arange(2_000_000, dtype=np.int32)
    np.testing.assert_array_equal(client.echo(array), array)
    answers = [client.future.echo(array[: index * 1000]) for index in range(50)]
    assert [len(answer.result()) for answer in answers] == [index * 1000 for index in range(50)]


def test_two_full_streams_do_not_wait_for_each_other(listener: Listener) -> None:
    client = client_of(listener.endpoint)
    answers = [client.future.echo(bytes(3_000_000)) for _ in range(10)]
    assert all(len(answer.result()) == 3_000_000 for answer in answers)


def test_a_caller_with_the_wrong_secret_is_turned_away(listener: Listener) -> None:
    client = client_of(listener.endpoint, b"x" * 32)
    with pytest.raises(NodeDied):
        client.echo(1)
    assert client_of(listener.endpoint).echo(1) == 1


SPRUNG: list[bool] = []


class Trap:
    """Unpickling it shows."""

    def __reduce__(self) -> Any:
        return spring, ()


def spring() -> None:
    SPRUNG.append(True)


def test_nothing_is_unpickled_before_the_secret_is_shown(listener: Listener) -> None:
    SPRUNG.clear()
    stranger = Connection(socket.create_connection((listener.endpoint.host, listener.endpoint.port)), shared=False)
    stranger.send(("echo", (Trap(),), {}))
    with pytest.raises(Closed):
        stranger.receive()
    stranger.close()
    assert not SPRUNG
    client_of(listener.endpoint).echo(Trap())
    assert SPRUNG, "the trap works: with the secret it springs"


def test_calls_to_where_nobody_listens_raise(listener: Listener) -> None:
    for endpoint in (NOWHERE, Endpoint("\0nobody-here", "127.0.0.1", 1)):
        with pytest.raises(NodeDied, match="'echo'"):
            client_of(endpoint).echo(1)


def test_a_lane_moves_to_a_newcomer_while_somebody_waits_on_it(listener: Listener) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # takes calls and never answers, as a machine without power
    lane = LocalLane("echo", connect(Endpoint(None, *silent.getsockname()), SECRET))
    waiting = lane.send("echo", (1,), {})
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            waiting.result()
        except NodeDied as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    lane.replace(connect(listener.endpoint, SECRET))
    thread.join(5.0)
    silent.close()
    assert len(raised) == 1
    assert lane.send("echo", (2,), {}).result() == 2
