"""The server: one port for websockets and HTTP, with everything bounded that a stranger could make large or slow.

It knows the handshake and the limits. What is behind the door is a `Service`: simulators that learn, or a policy.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import hmac
import importlib.util
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from shoal.errors import UserError
from shoal.gateway.messages import PROTOCOL, Hello, Refused, error, kind_of
from shoal.gateway.wire import Message, WireError, pack, unpack

T = TypeVar("T")
log = logging.getLogger("shoal.gateway")
_strangers_log = logging.getLogger("shoal.gateway.strangers")  # aiohttp's own: a traceback for each who hangs up early
_strangers_log.setLevel(logging.CRITICAL + 1)  # they are counted; what fails here is told by `log`

BACKLOG = 1024  # connections that the kernel holds until they are looked at
CLOSING = 2.0  # seconds that a closed websocket has to say goodbye
LARGEST_HEADER = 8190  # bytes of a line
MOST_HEADERS = 64
STRANGERS = 64  # connections at once that have not shown a token yet, where one is needed


class Listen(NamedTuple):
    """Where a server listens."""

    host: str
    port: int  # 0: any that is free

    @staticmethod
    def parse(text: str, option: str = "--listen") -> Listen:
        """HOST:PORT, :PORT or PORT; an IPv6 address stands in brackets."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not port.isascii() or not port.isdecimal() or int(port) > 65_535 or "/" in host:
            raise UserError(f"{option} {text!r} names no place to listen: give HOST:PORT, such as 127.0.0.1:8700.")
        return Listen(host, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as problem:
            raise UserError(f"the host {self.host!r} to listen on is unknown: {problem.strerror or problem}.") from None
        return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Security:
    """Who may come in, and whether others can listen."""

    token: str | None = field(default=None, repr=False)  # that every client shows; None: nobody is asked
    certificate: Path | None = None  # PEM files of the user's
    key: Path | None = None

    SHORTEST = 16  # characters of a token: what can be guessed is none

    def check(self, listen: Listen) -> None:
        if self.token is not None and len(self.token) < self.SHORTEST:
            raise UserError(
                f"the token has {len(self.token)} characters and could be guessed: give {self.SHORTEST} or more."
            )
        if self.token is None and not listen.loopback:
            raise UserError(
                f"{listen} can be reached from other machines, so clients must show a token: put one into a file and "
                "give --token-file FILE, or listen on 127.0.0.1."
            )
        if (self.certificate is None) != (self.key is None):
            raise UserError("TLS needs both files: give --tls-certificate and --tls-key.")

    @staticmethod
    def from_files(token_file: str | None, certificate: str | None, key: str | None) -> Security:
        """The token stands in a file: options are seen by everybody on the machine, and recorded."""
        token = None
        if token_file is not None:
            try:
                token = Path(token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as problem:
                why = getattr(problem, "strerror", None) or problem
                raise UserError(f"--token-file {token_file} cannot be read: {why}.") from None
        return Security(token, (certificate and Path(certificate)) or None, (key and Path(key)) or None)

    def allows(self, shown: str) -> bool:
        return self.token is None or hmac.compare_digest(self.token.encode(), shown.encode())

    def context(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as problem:
            raise UserError(
                f"--tls-certificate {self.certificate} and --tls-key {self.key} cannot be used: "
                f"{getattr(problem, 'strerror', None) or problem}."
            ) from None
        return context


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much anybody may ask for."""

    message_bytes: int = 16 << 20  # of one message or one HTTP body
    connections: int = 1024
    connections_per_address: int = 1024
    openings_per_second: float = 500.0  # connections of one address, after as many at once
    handshake_seconds: float = 10.0  # for TLS, for a request's headers and body, and for the hello
    ping_seconds: float = 20.0  # after which a silent client is asked whether it lives; half of it to answer
    messages_per_second: float = 0.0  # of one connection; beyond it is waited; 0: as many as it likes
    bytes_under_way: int = 1 << 20  # answers that a client has not taken, before its next message is read


class Gone(Exception):
    """The client has left, or the connection was lost."""


class Peer:
    """A client that may come in, on its websocket. `hello` is None for one that said none (openpi's)."""

    def __init__(
        self, socket: web.WebSocketResponse, address: str, limits: Limits, counts: collections.Counter[str]
    ) -> None:
        self.address = address
        self.hello: Hello | None = None
        self.text_keys = False
        self._socket, self._limits, self._counts = socket, limits, counts
        self._first: Message | None = None  # that was read before it was known who sent it
        self._tokens, self._when = limits.messages_per_second, time.monotonic()

    async def receive(self, seconds: float | None = None) -> Message:
        """The next message; `Gone` when none will come, `WireError` for what is none."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._limits.messages_per_second:
            await self._pace()
        came: WSMessage = await self._socket.receive(seconds)
        if came.type is WSMsgType.BINARY:
            self._counts["messages"] += 1
            return unpack(came.data)
        if came.type is WSMsgType.TEXT:
            raise WireError("messages are binary: this one was text")
        if came.type is WSMsgType.ERROR and self._socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
            self._counts["refused_size"] += 1
        raise Gone

    async def send(self, message: Message) -> None:
        await self.send_packed(pack(message, self.text_keys))

    def send_now(self, message: Message) -> bool:
        """As `write`."""
        return self.write(pack(message, self.text_keys))

    def write(self, data: bytes) -> bool:
        """Write a packed message without waiting; whether the next one may be written so too, or the client has to take
        what it was sent first."""
        sending = self._socket.send_bytes(data)
        try:
            sending.send(None)
        except StopIteration:
            return True
        except (ConnectionError, RuntimeError):
            raise Gone from None
        sending.close()  # it is written, and waited for room
        return False

    async def send_packed(self, data: bytes) -> None:
        """Waits while the client does not take what it was sent."""
        try:
            await self._socket.send_bytes(data)
        except (ConnectionError, RuntimeError):
            raise Gone from None

    async def refuse(self, refused: Refused, seq: int | None = None) -> None:
        """Tell why; who said no hello is told in plain text, as openpi's client expects it."""
        self._counts[f"refused_{refused.code}"] += 1
        with contextlib.suppress(Gone, ConnectionError, RuntimeError):
            if self.hello is None:
                await self._socket.send_str(f"error ({refused.code}): {refused.sentence}")
            else:
                await self.send(error(refused.code, refused.sentence, seq))

    async def end(self, sentence: str) -> None:
        """Say that there is nothing to come back for."""
        with contextlib.suppress(Gone):
            if self.hello is not None:
                await self.send({"type": "end", "message": sentence})
        await self.close(WSCloseCode.OK, "end")

    async def close(self, code: int, why: str = "") -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._socket.close(code=code, message=why.encode()[:120]), CLOSING)

    async def _pace(self) -> None:
        """Reading waits where messages come faster than they may: the kernel's buffers fill, and the client waits."""
        rate, now = self._limits.messages_per_second, time.monotonic()
        self._tokens = min(rate, self._tokens + (now - self._when) * rate) - 1.0
        self._when = now
        if self._tokens < 0.0:
            self._counts["paced"] += 1
            await asyncio.sleep(-self._tokens / rate)


class Service(Protocol):
    """What is behind the door."""

    kind: str  # "train" or "serve"

    def metadata(self) -> Message:
        """What clients that may come in are told at once: the run, its spaces."""

    async def talk(self, peer: Peer) -> None:
        """One client, from its hello until it leaves. `Refused` ends it with a sentence, `Gone` without one."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """An HTTP request that is answered on the same port, by those who may come in unless it is `open`."""

    method: str
    path: str  # as aiohttp writes it: /v2/models/{model}/infer
    handler: Handler
    open: bool = False


class Door:
    """The server, in the event loop that starts it."""

    def __init__(
        self,
        service: Service,
        listen: Listen,
        *,
        security: Security | None = None,
        limits: Limits | None = None,
        routes: Sequence[Route] = (),
    ) -> None:
        self.service, self.listen = service, listen
        self.security, self.limits = security or Security(), limits or Limits()
        self.security.check(listen)
        self._tls = self.security.context()
        self._routes = list(routes)
        self.counts: collections.Counter[str] = collections.Counter()
        self.peers: set[Peer] = set()
        self._open: collections.Counter[str] = collections.Counter()  # connections by address
        self._openings: dict[str, tuple[float, float]] = {}  # what an address may still open, and when that was
        self._strangers = 0  # connections that have not shown a token, where one is needed
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._stopping = False

    async def start(self) -> int:
        """Listen; the port, which is another than was asked for where that was 0."""
        limits = self.limits
        app = web.Application(client_max_size=limits.message_bytes, middlewares=[self._guard])
        app.router.add_get("/", self._websocket)
        app.router.add_get("/healthz", self._health)
        for route in self._routes:
            app.router.add_route(route.method, route.path, route.handler)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_strangers_log,
            handle_signals=False,
            keepalive_timeout=limits.handshake_seconds,  # from the connection on: slow headers end with it
            max_line_size=LARGEST_HEADER,
            max_field_size=LARGEST_HEADER,
            max_headers=MOST_HEADERS,
            lingering_time=1.0,
            shutdown_timeout=CLOSING,
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._count_connections(server)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                server,
                self.listen.host,
                self.listen.port,
                ssl=self._tls,
                ssl_handshake_timeout=limits.handshake_seconds if self._tls else None,
                backlog=BACKLOG,
                reuse_address=True,
            )
        except OSError as problem:
            await self._runner.cleanup()
            raise UserError(f"cannot listen on {self.listen}: {problem.strerror or problem}.") from None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace: float = 5.0, why: str = "the server stops", code: int = WSCloseCode.GOING_AWAY) -> None:
        """Take no more connections; those that are there have `grace` seconds to finish what is under way."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        leaving = [asyncio.ensure_future(peer.close(code, why)) for peer in list(self.peers)]
        if leaving:
            await asyncio.wait(leaving, timeout=grace)
        if self._runner is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._runner.cleanup(), grace + CLOSING)

    # ---- who may open a connection

    def _count_connections(self, server: web.Server) -> None:
        """Each is counted when it is made, and what is too much ends before a byte of it is read."""
        made, lost = server.connection_made, server.connection_lost
        addresses: dict[Any, str] = {}

        def connection_made(handler: Any, transport: asyncio.Transport) -> None:
            made(handler, transport)
            name = transport.get_extra_info("peername")
            address = str(name[0]) if name else "?"
            if not self._admits(address):
                transport.abort()
                return
            addresses[handler] = address
            self.counts["connections"] += 1
            self._open[address] += 1

        def connection_lost(handler: Any, problem: BaseException | None = None) -> None:
            lost(handler, problem)
            address = addresses.pop(handler, None)
            if address is not None:
                self._open[address] -= 1
                if self._open[address] <= 0:
                    del self._open[address]

        server.connection_made, server.connection_lost = connection_made, connection_lost  # type: ignore[method-assign,assignment]

    def _admits(self, address: str) -> bool:
        limits = self.limits
        if sum(self._open.values()) >= limits.connections or self._open[address] >= limits.connections_per_address:
            self.counts["refused_full"] += 1
            return False
        now = time.monotonic()
        if len(self._openings) > 4 * limits.connections:
            self._openings.clear()
        left, when = self._openings.get(address, (limits.openings_per_second, now))
        left = min(limits.openings_per_second, left + (now - when) * limits.openings_per_second)
        self._openings[address] = (left - 1.0 if left >= 1.0 else left, now)
        if left < 1.0:
            self.counts["refused_rate"] += 1
            return False
        return True

    @property
    def connections(self) -> int:
        return sum(self._open.values())

    # ---- HTTP

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who may ask, how long that may take, and what a stranger is told of errors."""
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        public = path in ("/", "/healthz") or any(route.open and route.path == path for route in self._routes)
        if not public and not self.security.allows(_token(request)):
            self.counts["refused_token"] += 1
            return web.json_response({"error": "a token is needed: Authorization: Bearer TOKEN"}, status=401)
        try:
            if request.can_read_body:
                if (request.content_length or 0) > self.limits.message_bytes:
                    raise web.HTTPRequestEntityTooLarge(self.limits.message_bytes, request.content_length or 0)
                async with asyncio.timeout(self.limits.handshake_seconds):
                    await request.read()  # kept by the request
            return await handler(request)
        except web.HTTPException as problem:
            if problem.status >= 400:
                self.counts["refused_http"] += 1
                return web.json_response({"error": problem.reason}, status=problem.status, headers=_allow(problem))
            raise
        except TimeoutError:
            self.counts["refused_slow"] += 1
            return web.json_response({"error": "the request took too long to arrive"}, status=408)
        except Refused as refused:
            self.counts[f"refused_{refused.code}"] += 1
            return web.json_response({"error": refused.sentence}, status=_STATUS.get(refused.code, 400))
        except WireError as problem:
            self.counts["refused_message"] += 1
            return web.json_response({"error": str(problem)}, status=400)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a request failed")
            self.counts["errors"] += 1
            return web.json_response({"error": "the server could not answer"}, status=500)

    async def _health(self, request: web.Request) -> web.Response:
        if self._stopping:
            return web.Response(status=503, text="stopping\n")
        return web.Response(text="ok\n")

    # ---- websockets

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        limits = self.limits
        if self._stopping:
            return web.Response(status=503, text="stopping\n")
        shown = _token(request)
        allowed = self.security.allows(shown)
        if shown and not allowed:
            self.counts["refused_token"] += 1
            return web.json_response({"error": "the token is not the server's"}, status=401)
        if self.security.token is None and not _from_here(request.headers.get("Origin")):
            self.counts["refused_origin"] += 1
            return web.json_response({"error": "pages of other hosts need a token"}, status=403)
        socket = web.WebSocketResponse(
            compress=False,  # small messages cost more to compress than to send, and bombs are compressed
            max_msg_size=limits.message_bytes,
            heartbeat=limits.ping_seconds,
            timeout=CLOSING,
            writer_limit=limits.bytes_under_way,
        )
        if not socket.can_prepare(request).ok:
            return web.Response(text="This is a Shoal server: open a websocket here, or ask /healthz.\n")
        if not allowed and self._strangers >= STRANGERS:
            self.counts["refused_full"] += 1
            return web.json_response({"error": "too many come without a token at the moment"}, status=503)
        await socket.prepare(request)
        peer = Peer(socket, request.remote or "?", limits, self.counts)
        try:
            with self._stranger(not allowed):
                await self._introduce(peer, allowed)
            self.peers.add(peer)
            await self.service.talk(peer)
            await peer.close(WSCloseCode.OK)
        except Gone:
            pass
        except Refused as refused:
            await peer.refuse(refused)
            late = refused.code in ("full", "rate")
            await peer.close(WSCloseCode.TRY_AGAIN_LATER if late else WSCloseCode.POLICY_VIOLATION, refused.code)
        except WireError as problem:
            await peer.refuse(Refused("message", str(problem)))
            await peer.close(WSCloseCode.POLICY_VIOLATION, "message")
        except TimeoutError:
            await peer.refuse(Refused("message", f"no hello came within {limits.handshake_seconds:g} s"))
            await peer.close(WSCloseCode.POLICY_VIOLATION, "slow")
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a connection failed")
            self.counts["errors"] += 1
            await peer.refuse(Refused("internal", "the server could not go on with this connection; come back"))
            await peer.close(WSCloseCode.INTERNAL_ERROR)
        finally:
            self.peers.discard(peer)
        return socket

    @contextlib.contextmanager
    def _stranger(self, counted: bool) -> Iterator[None]:
        self._strangers += counted
        try:
            yield
        finally:
            self._strangers -= counted

    async def _introduce(self, peer: Peer, allowed: bool) -> None:
        """The handshake: greeting, hello, and the token where the header had none."""
        greeting: Message = {
            "type": "greeting",
            "protocol": PROTOCOL,
            "server": self.service.kind,
            "token": not allowed,
        }
        await peer.send(greeting | (self.service.metadata() if allowed else {}))
        async with asyncio.timeout(None if allowed else self.limits.handshake_seconds):
            first = await peer.receive()  # of one that may come in: openpi's asks when its robot is ready
        if kind_of(first) == "hello":
            peer.hello = Hello.read(first)
            peer.text_keys = peer.hello.text_keys
            if not allowed and not self.security.allows(peer.hello.token):
                raise Refused("token", "the token is missing or is not the server's")
        elif not allowed:
            raise Refused("token", "a token is needed: say hello with one, or send it as Authorization: Bearer TOKEN")
        else:
            peer._first = first


class DoorThread:
    """A door in a thread and an event loop of its own, for who has other things to do."""

    def __init__(self, door: Door, prepare: Callable[[], object] | None = None) -> None:
        """`prepare` is called in the thread before anything else."""
        self.door = door
        self._prepare = prepare
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """The port it listens on."""
        started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="gateway", daemon=True)
        self._thread.start()
        self.port = started.result()
        return self.port

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop's thread call it soon; nothing happens once the loop has ended."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *args)

    def run(self, coroutine: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T | None:
        """What comes of it in the loop's thread; None where the loop has ended, or after so many seconds."""
        loop = self._loop
        if loop is None:
            return None
        future = asyncio.run_coroutine_threadsafe(coroutine(), loop)
        try:
            return future.result(seconds)
        except (TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            return None

    def stop(self, grace: float = 5.0, why: str = "the server stops", code: int = WSCloseCode.GOING_AWAY) -> None:
        """As `Door.stop`; returns when the thread has ended."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        with contextlib.suppress(RuntimeError, TimeoutError, concurrent.futures.CancelledError):
            asyncio.run_coroutine_threadsafe(self.door.stop(grace, why, code), loop).result(2 * grace + 2 * CLOSING)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._stopped.set)
        thread.join(CLOSING)

    def _run(self, started: concurrent.futures.Future[int]) -> None:
        try:
            if self._prepare is not None:
                self._prepare()
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._listen(started))
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    async def _listen(self, started: concurrent.futures.Future[int]) -> None:
        port = await self.door.start()
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        started.set_result(port)
        try:
            await self._stopped.wait()
        finally:
            self._loop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, which is quicker."""
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() in ("bearer", "api-key") else ""


def _from_here(origin: str | None) -> bool:
    """Whether no web page asks, or one of this machine: any page that somebody looks at may open websockets here."""
    if origin is None:
        return True
    try:
        host = urlsplit(origin).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _allow(problem: web.HTTPException) -> dict[str, str]:
    return {name: problem.headers[name] for name in ("Allow",) if name in problem.headers}


_STATUS = {"token": 401, "full": 503, "rate": 429, "size": 413, "internal": 500}
