"""Who does not belong to a run gets nowhere: nothing it sends is unpickled, and it keeps nobody out."""

from __future__ import annotations

import contextlib
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from strangers import AUTHORITY, client_of, listening

from shoal.program import NodeDied
from shoal.runtime.network import endpoints
from shoal.runtime.network import listener as answering
from shoal.runtime.network.endpoints import ABSTRACT, Endpoint, connect
from shoal.runtime.network.identity import Authority, Identity, Trust
from shoal.runtime.network.listener import MOST, Listener
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.transport import Closed, Connection


class Trap:
    """Unpickling it leaves a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.fixture(params=["loopback", "far"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with listening(near=False, secure=request.param == "far") as one:
        yield one


def address(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port


class Tap:
    """Somebody between caller and callee who writes down what the caller says."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._endpoint = endpoint
        self.endpoint = Endpoint(None, *self._server.getsockname(), secure=endpoint.secure)  # type: ignore[call-arg]
        self.overheard = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = self._server.accept()
                callee = socket.create_connection(address(self._endpoint))
                threading.Thread(target=self._pass, args=(callee, caller, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(caller, callee, self._remember), daemon=True).start()

    def _remember(self, data: bytes) -> None:
        self.overheard += data

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, tell: Callable[[bytes], None] | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if tell:
                    tell(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.close()


def said_back(endpoint: Endpoint, words: bytes) -> bytes:
    """Everything that a node answers to somebody who says `words`, until it hangs up."""
    with socket.create_connection(address(endpoint), 10.0) as stranger:
        answer = b""
        try:
            stranger.sendall(words)
            while part := stranger.recv(65536):
                answer += part
        except ConnectionError:  # hung up in the middle of it
            pass
        return answer


def test_what_was_overheard_is_worth_nothing(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = Tap(listener.endpoint)
    monkeypatch.setattr(Endpoint, "name", b"")  # or on loopback no call would get past the tap at all
    lane = LocalLane("echo", connect(tap.endpoint, AUTHORITY.identity()))
    sprung = tmp_path / "sprung"
    lane.send("echo", (Trap(sprung),), {}).result()
    assert sprung.exists(), "the trap works: sent by a node of the run it springs"
    sprung.unlink()
    assert len(tap.overheard) > 100
    said_back(listener.endpoint, tap.overheard)
    assert not sprung.exists()
    assert AUTHORITY.trust.secret not in tap.overheard
    if listener.endpoint.secure:
        assert b"echo" not in tap.overheard, "nothing of the call can be read"
    tap.close()


def test_a_call_that_is_passed_on_to_another_node_is_refused() -> None:
    """On loopback a stranger may get the port of a node that has ended, and stand between caller and another node."""
    with listening(near=False, secure=False) as listener:
        tap = Tap(listener.endpoint)
        with pytest.raises(NodeDied):
            LocalLane("echo", connect(tap.endpoint, AUTHORITY.identity())).send("echo", (1,), {}).result()
        tap.close()


def strange_pickles(sprung: Path) -> list[bytes]:
    """A call as it is framed on a plain stream, alone and after what might be taken for a secret."""
    ours, theirs = socket.socketpair()
    Connection(ours, shared=False).send(("echo", (Trap(sprung),), {}))
    framed = theirs.recv(65536)
    ours.close()
    theirs.close()
    secret = AUTHORITY.trust.secret
    return [framed, secret + framed, bytes(32) + framed, bytes(64) + framed, pickle.dumps(Trap(sprung)), b"x" * 100_000]


def test_plain_text_is_refused(listener: Listener, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    for words in strange_pickles(sprung):
        assert len(said_back(listener.endpoint, words)) <= 64  # a challenge, or an alert
    assert not sprung.exists()
    assert client_of(listener.endpoint).echo(1) == 1


def another_run() -> Identity:
    return Authority().identity()


def without_a_signature() -> Identity:
    """Knows all that travels over Ray's channel, and has signed its key itself."""
    impostor = Authority()
    identity = Identity(AUTHORITY.trust)
    identity.certify(impostor.sign(identity.public_key))
    return identity


def with_another_secret() -> Identity:
    identity = Identity(Trust(bytes(32), AUTHORITY.trust.authority))
    identity.certify(AUTHORITY.sign(identity.public_key))
    return identity


@pytest.mark.parametrize(
    ("make", "secure"),
    [(another_run, True), (another_run, False), (without_a_signature, True), (with_another_secret, False)],
)
def test_a_caller_of_another_run_is_refused(make: Callable[[], Identity], secure: bool, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    with listening(near=False, secure=secure) as listener:
        client = client_of(listener.endpoint, make())
        with pytest.raises(NodeDied):
            client.echo(Trap(sprung))
        assert client_of(listener.endpoint).echo(1) == 1
    assert not sprung.exists()


@pytest.mark.parametrize("secure", [True, False])
def test_a_callee_of_another_run_is_not_called(secure: bool) -> None:
    """Somebody listens where a node was: it learns nothing, and nothing that it answers is unpickled."""
    heard: list[Connection] = []
    stranger = Listener(another_run(), "127.0.0.1", heard.append, near=False, secure=secure)
    stranger.open()
    with pytest.raises(NodeDied):
        client_of(stranger.endpoint).echo(1)
    stranger.close()
    assert not heard


def test_a_caller_without_a_certificate_is_refused(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=AUTHORITY.trust.authority.decode())
    with listening(near=False, secure=True) as listener:
        with context.wrap_socket(socket.create_connection(address(listener.endpoint), 10.0)) as stranger:
            try:
                stranger.sendall(strange_pickles(sprung)[0])
                answer = stranger.recv(1)
            except OSError:
                answer = b""
        assert answer == b""
        assert client_of(listener.endpoint).echo(1) == 1
    assert not sprung.exists()


def test_older_versions_of_tls_are_refused() -> None:
    with listening(near=False, secure=True) as listener:
        context = AUTHORITY.identity().context(serving=False)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            context.wrap_socket(socket.create_connection(address(listener.endpoint), 10.0))


def test_bytes_changed_on_their_way_end_the_connection(tmp_path: Path) -> None:
    with listening(near=False, secure=True) as listener:
        connection = connect(listener.endpoint, AUTHORITY.identity())
        connection.send(("echo", (1,), {}))
        assert connection.receive()[0] == (True, 1)
        connection.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record as TLS has them, that says nothing
        with pytest.raises(Closed):
            connection.receive()


@pytest.mark.skipif(not ABSTRACT, reason="abstract AF_UNIX names are Linux's")
def test_a_peer_of_another_user_hears_not_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        assert listener.endpoint.near is not None
        monkeypatch.setattr(endpoints.os, "geteuid", lambda: 12345)  # to the node, every peer is now another user's
        peer.settimeout(10.0)
        peer.connect(listener.endpoint.near)
        assert peer.recv(1) == b""


def test_silent_connections_hold_no_threads_and_keep_nobody_out(listener: Listener) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(address(listener.endpoint), 10.0) for _ in range(500)]
    try:
        began = time.monotonic()
        assert client_of(listener.endpoint).echo(1) == 1
        assert time.monotonic() - began < 30.0
        assert threading.active_count() - before <= 2, "the two lanes' threads, and none for who has said nothing"
        assert len(listener._visitors) <= MOST
        for sock in silent:
            sock.settimeout(10.0)
            while sock.recv(65536):
                pass  # a challenge; then the node hangs up
        assert time.monotonic() - began < 30.0
    finally:
        for sock in silent:
            sock.close()


def test_who_speaks_slowly_is_given_up_on(listener: Listener) -> None:
    began = time.monotonic()
    hung_up = False
    with socket.create_connection(address(listener.endpoint), 10.0) as slow:
        while not hung_up and time.monotonic() - began < 30.0:
            try:
                slow.sendall(b"\x16")
            except OSError:
                hung_up = True
            time.sleep(0.2)
    assert hung_up


def test_a_run_gives_away_no_private_key() -> None:
    trust = AUTHORITY.trust
    identity = Identity(trust)
    travels = b"".join([trust.authority, trust.secret, identity.public_key, AUTHORITY.sign(identity.public_key)])
    assert b"PRIVATE" not in travels
    assert travels.count(b"BEGIN CERTIFICATE") == 2


@pytest.mark.parametrize(("waiting", "patience"), [(2, answering.PROVING), (3, answering.CROWDED)])
def test_callers_are_given_less_time_where_others_wait(
    waiting: int, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "MOST", 3)
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: 100.0))
    made: Any = object.__new__(Listener)
    turned: list[int] = []
    made._visitors = {number: SimpleNamespace(since=100.0 - 0.01 * (waiting - number)) for number in range(waiting)}
    made._turn_away = turned.append
    assert made._expire() == pytest.approx(patience - 0.01 * waiting)
    made._visitors[0].since = 100.0 - patience
    assert made._expire() == pytest.approx(patience - 0.01 * (waiting - 1))
    assert turned == [0]
