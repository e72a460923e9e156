"""The door: who comes in, what is bounded, and what strangers get to hear."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway_clients import certificates
from shoal.errors import UserError
from shoal.gateway.messages import Refused
from shoal.gateway.server import Door, DoorThread, Limits, Listen, Peer, Route, Security
from shoal.gateway.wire import Message, pack, unpack

TOKEN = "a token of the test's"


class Echo:
    """Answers with what it was told, after a welcome."""

    kind = "serve"

    def metadata(self) -> Message:
        return {"run": "echo"}

    async def talk(self, peer: Peer) -> None:
        if peer.hello is not None:
            await peer.send({"type": "welcome", "environments": peer.hello.count})
        while True:
            message = await peer.receive()
            if "break" in message:
                raise ZeroDivisionError("a secret of the server's")
            if "refuse" in message:
                raise Refused("full", "come back later")
            await peer.send({"type": "echo", "message": message})


async def shout(request: web.Request) -> web.Response:
    text = await request.text()
    if text == "break":
        raise ZeroDivisionError("a secret of the server's")
    return web.json_response({"heard": text.upper()})


@pytest.fixture
def doors() -> Iterator[Any]:
    running: list[DoorThread] = []

    def open_door(**options: Any) -> DoorThread:
        routes = [Route("POST", "/shout/{who}", shout)]
        thread = DoorThread(Door(Echo(), Listen("127.0.0.1", 0), routes=routes, **options))
        thread.start()
        running.append(thread)
        return thread

    yield open_door
    for thread in running:
        thread.stop(grace=1.0)


def ask(door: DoorThread, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=10)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def opened(door: DoorThread, **options: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{door.port}", compression=None, max_size=None, **options)


def told(client: ClientConnection) -> Message:
    return unpack(client.recv(timeout=10, decode=False))


def test_a_client_is_greeted_and_answered(doors: Any) -> None:
    with opened(doors()) as client:
        assert told(client) == {"type": "greeting", "protocol": 1, "server": "serve", "token": False, "run": "echo"}
        client.send(pack({"type": "hello", "protocol": 1, "environments": 2}))
        assert told(client) == {"type": "welcome", "environments": 2}
        client.send(pack({"a": np.arange(3)}))
        np.testing.assert_array_equal(told(client)["message"]["a"], np.arange(3))


def test_who_says_no_hello_is_served_from_the_first_message_as_openpi_asks(doors: Any) -> None:
    with opened(doors(), additional_headers={"Authorization": "Api-Key any"}) as client:
        told(client)
        client.send(pack({"observation/image": np.zeros((2, 2), np.uint8), "prompt": "do it"}))
        assert told(client)["message"]["prompt"] == "do it"
        client.send(b"\xc1")
        text = client.recv(timeout=10)
        assert isinstance(text, str)
        assert "no msgpack" in text


def test_one_port_answers_http_too(doors: Any) -> None:
    door = doors()
    assert ask(door, "GET", "/healthz") == (200, "ok\n")
    assert ask(door, "POST", "/shout/me", b"hello") == (200, '{"heard": "HELLO"}')
    assert ask(door, "GET", "/nowhere")[0] == 404
    assert ask(door, "GET", "/shout/me")[0] == 405
    assert "websocket" in ask(door, "GET", "/")[1]


def test_errors_reach_strangers_without_their_insides(doors: Any) -> None:
    door = doors()
    status, text = ask(door, "POST", "/shout/me", b"break")
    assert status == 500
    assert "secret" not in text
    with opened(door) as client:
        told(client)
        client.send(pack({"type": "hello", "protocol": 1}))
        told(client)
        client.send(pack({"break": 1}))
        answer = told(client)
        assert answer["code"] == "internal"
        assert "secret" not in str(answer)
        assert "Error" not in str(answer)


@pytest.mark.parametrize("where", ["bearer", "api-key", "hello"])
def test_a_token_opens_the_door(doors: Any, where: str) -> None:
    door = doors(security=Security(token=TOKEN))
    headers = {} if where == "hello" else {"Authorization": f"{where} {TOKEN}"}
    with opened(door, additional_headers=headers) as client:
        greeting = told(client)
        assert greeting["token"] is (where == "hello")
        assert ("run" in greeting) is (where != "hello")
        hello = {"type": "hello", "protocol": 1} | ({"token": TOKEN} if where == "hello" else {})
        client.send(pack(hello))
        assert told(client)["type"] == "welcome"
    assert ask(door, "POST", "/shout/me", b"a", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(door, "GET", "/healthz")[0] == 200


def test_without_the_token_nothing_is_told(doors: Any) -> None:
    door = doors(security=Security(token=TOKEN))
    assert ask(door, "POST", "/shout/me", b"a")[0] == 401
    assert ask(door, "POST", "/shout/me", b"a", Authorization="Bearer wrong")[0] == 401
    with pytest.raises(InvalidStatus):
        opened(door, additional_headers={"Authorization": "Bearer wrong"})
    for first in ({"type": "hello", "protocol": 1}, {"type": "hello", "protocol": 1, "token": "wrong"}, {"a": 1}):
        with opened(door) as client:
            told(client)
            client.send(pack(first))
            assert "token" in str(client.recv(timeout=10))
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(timeout=10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008


def test_other_machines_need_a_token_and_loopback_does_not() -> None:
    with pytest.raises(UserError, match="--token-file"):
        Door(Echo(), Listen("0.0.0.0", 0))
    Door(Echo(), Listen("0.0.0.0", 0), security=Security(token=TOKEN))
    with pytest.raises(UserError, match="could be guessed"):
        Door(Echo(), Listen("127.0.0.1", 0), security=Security(token="short"))
    with pytest.raises(UserError, match="--tls-key"):
        Door(Echo(), Listen("127.0.0.1", 0), security=Security(certificate=Path("a.pem")))
    with pytest.raises(UserError, match="cannot be used"):
        Door(Echo(), Listen("127.0.0.1", 0), security=Security(certificate=Path("a.pem"), key=Path("b.pem")))


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("8700", ("127.0.0.1", 8700)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_where_to_listen(text: str, listen: tuple[str, int]) -> None:
    assert Listen.parse(text) == listen


@pytest.mark.parametrize("text", ["", "here", "host:", "host:70000", "http://host:80", "host:-1"])
def test_no_place_to_listen_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        Listen.parse(text)


def test_a_port_that_is_taken_is_one_sentence(doors: Any) -> None:
    taken = doors().port
    with pytest.raises(UserError, match="cannot listen"):
        DoorThread(Door(Echo(), Listen("127.0.0.1", taken))).start()


def test_large_messages_end_at_their_header(doors: Any) -> None:
    door = doors(limits=Limits(message_bytes=1000))
    assert ask(door, "POST", "/shout/me", b"a" * 2000)[0] == 413
    with opened(door) as client:
        told(client)
        client.send(pack({"data": b"a" * 2000}))
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    with opened(door) as client:  # others are not touched
        told(client)
        client.send(pack({"a": 1}))
        assert told(client)["message"] == {"a": 1}


def ends_within(raw: socket.socket, seconds: float) -> bool:
    raw.settimeout(seconds)
    try:
        while raw.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nX-Slow: ",
        b"POST /shout/me HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        UPGRADE,
        UPGRADE + b"\x82\xfe\x40",
    ],
    ids=["silence", "half a header", "half a body", "no hello", "half a frame"],
)
def test_who_is_slow_is_shown_out(doors: Any, said: bytes) -> None:
    door = doors(limits=Limits(handshake_seconds=0.3, ping_seconds=0.3))  # who may come in has to answer pings
    with socket.create_connection(("127.0.0.1", door.port)) as raw:
        raw.sendall(said)
        assert ends_within(raw, 5.0)
    assert ask(door, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200,
        b"GET / HTTP/1.1\r\n" + b"X-Much: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(10_000)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        UPGRADE + b"\xff\xff" + b"\xff" * 20,
        UPGRADE + b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + b"a" * 20,
    ],
    ids=["TLS", "a long header", "endless headers", "a long path", "a frame of nothing", "a frame of 8 EiB"],
)
def test_garbage_ends_its_own_connection_only(doors: Any, said: bytes) -> None:
    door = doors()
    with socket.create_connection(("127.0.0.1", door.port)) as raw:
        raw.sendall(said)
        assert ends_within(raw, 5.0)
    assert ask(door, "GET", "/healthz")[0] == 200


def test_so_many_connections_and_no_more(doors: Any) -> None:
    door = doors(limits=Limits(connections=3))
    held = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(3)]
    try:
        time.sleep(0.2)
        with socket.create_connection(("127.0.0.1", door.port)) as raw:
            assert ends_within(raw, 5.0)
    finally:
        for raw in held:
            raw.close()
    deadline = time.monotonic() + 5.0
    while door.door.connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ask(door, "GET", "/healthz")[0] == 200
    assert door.door.counts["refused_full"] >= 1


def test_a_flood_of_openings_is_refused_and_ends(doors: Any) -> None:
    door = doors(limits=Limits(openings_per_second=20.0))
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", door.port)):
            pass
    deadline = time.monotonic() + 5.0
    while not door.door.counts["refused_rate"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert door.door.counts["refused_rate"]
    time.sleep(0.5)
    assert ask(door, "GET", "/healthz")[0] == 200


def test_messages_beyond_the_rate_wait(doors: Any) -> None:
    with opened(doors(limits=Limits(messages_per_second=50.0))) as client:
        told(client)
        begun = time.monotonic()
        for number in range(75):
            client.send(pack({"a": number}))
        for number in range(75):
            assert told(client)["message"] == {"a": number}
        assert time.monotonic() - begun > 0.3


def test_a_door_that_stops_says_so_and_takes_nobody(doors: Any) -> None:
    door = doors()
    with opened(door) as client:
        told(client)
        client.send(pack({"type": "hello", "protocol": 1}))
        told(client)
        door.stop(grace=2.0)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", door.port))


def test_refusals_that_pass_ask_to_come_back(doors: Any) -> None:
    with opened(doors()) as client:
        told(client)
        client.send(pack({"type": "hello", "protocol": 1}))
        told(client)
        client.send(pack({"refuse": 1}))
        assert told(client) == {"type": "error", "code": "full", "message": "come back later"}
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013


def test_tls_with_the_users_certificate(doors: Any, tmp_path: Path) -> None:
    certificate, key = certificates(tmp_path)
    door = doors(security=Security(certificate=certificate, key=key))
    trusting = ssl.create_default_context(cafile=str(certificate))
    with connect(f"wss://localhost:{door.port}", ssl=trusting, compression=None) as client:
        assert told(client)["type"] == "greeting"
    with pytest.raises(InvalidMessage):
        opened(door)
