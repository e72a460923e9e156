"""Meeting by address: the same calls over TCP and TLS as over AF_UNIX."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from strangers import AUTHORITY, client_of, listening

from shoal.program import NodeDied
from shoal.runtime.network import endpoints
from shoal.runtime.network.endpoints import ABSTRACT, NOWHERE, Endpoint, connect, loopback
from shoal.runtime.network.identity import Identity
from shoal.runtime.network.listener import Listener
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.secure import SecureConnection


@pytest.fixture(params=["near", "loopback", "far"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    """A node that is met on one machine (AF_UNIX and shared memory, or TCP) or across the network (TLS)."""
    if request.param == "near" and not ABSTRACT:
        pytest.skip("abstract AF_UNIX names are Linux's")
    with listening(near=request.param == "near", secure=request.param == "far") as one:
        yield one


def test_calls_arrive_over_every_way(listener: Listener) -> None:
    client = client_of(listener.endpoint)
    array = np.arange(2_000_000, dtype=np.int32)
    np.testing.assert_array_equal(client.echo(array), array)
    answers = [client.future.echo(array[: index * 1000]) for index in range(50)]
    assert [len(answer.result()) for answer in answers] == [index * 1000 for index in range(50)]


def test_two_full_streams_do_not_wait_for_each_other(listener: Listener) -> None:
    client = client_of(listener.endpoint)
    answers = [client.future.echo(bytes(3_000_000)) for _ in range(10)]
    assert all(len(answer.result()) == 3_000_000 for answer in answers)


def test_many_small_arrays_and_empty_ones_arrive(listener: Listener) -> None:
    client = client_of(listener.endpoint)
    arrays = [np.full(index % 7, index, dtype=np.float32) for index in range(300)]
    for sent, received in zip(arrays, client.echo(arrays), strict=True):
        np.testing.assert_array_equal(sent, received)


def test_one_thread_sends_while_another_one_waits(listener: Listener) -> None:
    lane = LocalLane("echo", connect(listener.endpoint, AUTHORITY.identity()))
    wrong: list[Any] = []

    def ask(number: int) -> None:
        for index in range(25):
            sent = np.full(20_000, number * 1000 + index)
            if not np.array_equal(lane.send("echo", (sent,), {}).result(), sent):
                wrong.append((number, index))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_an_encrypted_answer_that_came_together_with_another_one_is_ready() -> None:
    """Nothing is left in the socket by then, and nothing is decrypted yet."""
    callers, callees = socket.socketpair()
    caller = SecureConnection(callers, AUTHORITY.identity().context(serving=False), serving=False)
    callee = SecureConnection(callees, AUTHORITY.identity().context(serving=True), serving=True)
    serving = threading.Thread(target=lambda: list(callee.handshake()), daemon=True)
    serving.start()
    list(caller.handshake())
    serving.join(10.0)
    with contextlib.closing(caller), contextlib.closing(callee):
        assert not caller.ready()
        for word in ("one", "two"):
            callee.send(word)
        found = []
        while caller.ready():
            found.append(caller.receive()[0])
        assert found == ["one", "two"]


def test_calls_to_where_nobody_listens_raise(listener: Listener) -> None:
    for endpoint in (NOWHERE, Endpoint("\0nobody-here", "127.0.0.1", 1)):
        with pytest.raises(NodeDied, match="'echo'"):
            client_of(endpoint).echo(1)


def test_a_lane_moves_to_a_newcomer_while_somebody_waits_on_it(listener: Listener) -> None:
    with listening(Silent(), near=False, secure=listener.endpoint.secure) as silent:  # as a machine without power
        lane = LocalLane("echo", connect(silent.endpoint, AUTHORITY.identity()))
        waiting = lane.send("echo", (1,), {})
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                waiting.result()
            except NodeDied as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        lane.replace(connect(listener.endpoint, AUTHORITY.identity()))
        thread.join(5.0)
        assert len(raised) == 1
        assert lane.send("echo", (2,), {}).result() == 2


class Silent:
    def echo(self, value: Any) -> Any:
        threading.Event().wait(20.0)


def test_a_caller_waits_until_the_callee_can_prove_itself(listener: Listener) -> None:
    """A node listens before the driver has signed its key; whoever calls it meanwhile is let in afterwards."""
    identity = Identity(AUTHORITY.trust)
    late = Listener(identity, "127.0.0.1", lambda connection: connection.send("here"), near=False, secure=True)
    received: list[Any] = []
    thread = threading.Thread(
        target=lambda: received.append(connect(late.endpoint, AUTHORITY.identity()).receive()[0]), daemon=True
    )
    thread.start()
    time.sleep(0.1)
    identity.certify(AUTHORITY.sign(identity.public_key))
    late.open()
    thread.join(10.0)
    late.close()
    assert received == ["here"]


def test_what_leaves_the_machine_is_encrypted_and_what_stays_is_not() -> None:
    """Loopback and AF_UNIX stay as fast as they are."""
    assert [loopback(host) for host in ("127.0.0.1", "::1", "10.0.0.1", "a-machine")] == [True, True, False, False]
    identity = AUTHORITY.identity()
    with listening(near=False, secure=True) as far, listening(near=False) as here:
        assert isinstance(connect(far.endpoint, identity), SecureConnection)
        assert not isinstance(connect(here.endpoint, identity), SecureConnection)
    everywhere = Listener(identity, "0.0.0.0", lambda connection: None, near=False)
    everywhere.close()
    assert everywhere.endpoint.secure


@pytest.mark.skipif(not ABSTRACT, reason="abstract AF_UNIX names are Linux's")
def test_a_peer_of_another_user_is_met_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(secure=True) as listener:
        assert connect(listener.endpoint, AUTHORITY.identity()).sock.family == socket.AF_UNIX
        monkeypatch.setattr(endpoints.os, "geteuid", lambda: 12345)
        connection = connect(listener.endpoint, AUTHORITY.identity())
        assert connection.sock.family == socket.AF_INET
        lane = LocalLane("echo", connection)
        assert lane.send("echo", (1,), {}).result() == 1
