"""A client of Shoal's gateway: your simulator drives its own loop, asks what to do, and the policy learns from it.

One file; it needs Python, numpy, msgpack and websockets, and no Shoal:

    with Client("ws://127.0.0.1:8700", observation_space=..., action_space=...) as shoal:
        action = shoal.reset(observation)                                  # an episode begins
        while training:
            observation, reward, terminated, truncated, _ = simulator.step(action)
            action = shoal.step(observation, reward, terminated, truncated)
            if terminated or truncated:
                action = shoal.reset(simulator.reset())

Spaces are records such as {"kind": "box", "shape": [4], "dtype": "float32", "low": "-inf", "high": "inf"} and
{"kind": "discrete", "n": 2, "start": 0}; a server that demands its own needs none. With `environments=n` every array
has n rows. The client comes back by itself when the connection or the server is lost; `Ended`: the run is over.
"""

from __future__ import annotations

import json
import os
import random
import socket
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import msgpack
import numpy as np
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

PROTOCOL = 1
COME_BACK = (1001, 1006, 1011, 1012, 1013)  # close codes after which it is worth to try again


class Ended(Exception):
    """The server says that there is nothing more to do."""


class Refused(Exception):
    """The server does not take what was sent, in its own words."""


class Lost(ConnectionError):
    """The connection is gone; the client comes back."""


def pack(message: Any) -> bytes:
    return bytes(msgpack.packb(message, default=_as_map))


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, object_hook=_as_array)


def _as_map(value: Any) -> dict[bytes, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__} of {array.dtype} cannot be sent")
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}


def _as_array(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        return np.frombuffer(value[b"data"], np.dtype(value[b"dtype"])).reshape(value[b"shape"]).copy()
    return value


class Connection:
    """One websocket, without threads, on a plain socket. Whole binary messages are read and written here, since they
    are nearly all there is; handshake, pings, fragments and the close are the library's."""

    def __init__(
        self, url: str, headers: dict[str, str], timeout: float, largest: int, tls: ssl.SSLContext | None
    ) -> None:
        uri = parse_uri(url)
        self._protocol = ClientProtocol(uri, max_size=largest)
        self._largest, self._timeout = largest, timeout
        self._rest = self._fragments = b""
        self._messages: list[bytes] = []
        self._socket = socket.create_connection((uri.host, uri.port), timeout)
        try:
            self._prepare(uri, tls)
            self._shake_hands(headers)
        except BaseException:
            self._socket.close()
            raise

    def send(self, data: bytes) -> None:
        """What the other side has said before it closed, or was lost, is read first: why there is no more to do."""
        if self._protocol.state is not State.OPEN:
            if not self._messages:
                raise Lost(self._protocol.close_code or 1006)
            return
        try:
            self._write(data)
        except OSError:
            try:
                self.read_on(0.1)
            except OSError:
                pass
            if not self._messages:
                raise

    def read_on(self, timeout: float | None) -> None:
        """Read until there is a message."""
        if timeout != self._timeout:
            self._socket.settimeout(timeout)
            self._timeout = timeout
        while not self._messages:
            data = self._socket.recv(65_536)
            if not data:
                raise Lost(1006)
            self._read(self._rest + data if self._rest else data)

    def _write(self, data: bytes) -> None:
        size = len(data)
        if size >= 1024:
            self._protocol.send_binary(data)
            self._flush()
            return
        mask = os.urandom(4)
        masked = int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        head = bytes((0x82, 0x80 | size)) if size < 126 else b"\x82\xfe" + size.to_bytes(2, "big")
        self._socket.sendall(head + mask + masked.to_bytes(size, "big"))

    def receive(self, timeout: float | None) -> Any:
        if not self._messages:
            self.read_on(timeout)
        return unpack(self._messages.pop(0))

    def close(self) -> None:
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._flush()
        except Exception:
            pass
        self._socket.close()

    def _prepare(self, uri: WebSocketURI, tls: ssl.SSLContext | None) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine may vanish without a word
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if uri.secure:
            self._socket = (tls or ssl.create_default_context()).wrap_socket(self._socket, server_hostname=uri.host)

    def _shake_hands(self, headers: dict[str, str]) -> None:
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        self._flush()
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = self._socket.recv(65_536)
            if not data or len(answer) > 65_536:
                raise Lost(1006)
            answer += data
        end = answer.index(b"\r\n\r\n") + 4
        status = answer[9:12]  # HTTP/1.1 401
        if status in (b"401", b"403"):  # a token is missing or wrong: to try again would not help
            said = answer[end:] or self._socket.recv(4096)
            raise Refused(f"{status.decode()}: {said[:4096].decode(errors='replace')}")
        if status != b"101":
            raise Lost(1013)
        self._protocol.receive_data(answer[:end])
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc
        self._read(answer[end:])

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)

    def _read(self, data: bytes) -> None:
        """Take apart what has come; what is not whole stays."""
        while len(data) >= 2:
            size, start = data[1], 2
            if size >= 126:
                start = 4 if size == 126 else 10
                if len(data) < start:
                    break
                size = int.from_bytes(data[2:start], "big")
            if size > self._largest:
                raise Lost(1009)
            if len(data) < start + size:
                break
            if data[0] == 0x82:
                self._messages.append(data[start : start + size])
            else:
                self._read_other(data[: start + size])
            data = data[start + size :]
        self._rest = data

    def _read_other(self, frame: bytes) -> None:
        self._protocol.receive_data(frame)
        self._flush()  # answers to pings, and to a close
        for event in self._protocol.events_received():
            opcode = getattr(event, "opcode", None)
            if opcode in (Opcode.BINARY, Opcode.CONT):
                self._fragments = (self._fragments if opcode is Opcode.CONT else b"") + bytes(event.data)
                if event.fin:
                    self._messages.append(self._fragments)
            elif opcode is Opcode.CLOSE and not self._messages:
                raise Lost(self._protocol.close_code or 1006)


class Layers:
    """The policy of a server that trains, on this side: it chooses actions for observations [n, ...]."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.load(said)
        self._random = np.random.default_rng()

    def load(self, said: dict[str, Any]) -> None:
        data = said["weights"]  # safetensors: the length of a head, which says where arrays are, and the arrays
        size = int.from_bytes(data[:8], "little")
        found = {}
        for name, part in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + offset for offset in part["data_offsets"])
                found[name] = np.frombuffer(data[begin:end], "<f4").reshape(part["shape"])
        activations = enumerate(said["activations"])
        self._layers = [(found[f"{i}.weight"].T, found[f"{i}.bias"], activation) for i, activation in activations]
        self._said, self.stamp = {"epsilon": None} | said, said["stamp"]

    def act(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Actions [n], numbered from 0, and what is recorded of them."""
        x = observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        for weight, bias, activation in self._layers:
            x = x @ weight + bias
            x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0.0) if activation == "relu" else x
        rows = np.arange(len(x))
        if self._said["chooses"] == "categorical":
            shifted = x - x.max(1, keepdims=True)
            weights = np.exp(shifted)
            action = (weights / np.maximum(self._random.exponential(size=x.shape), 1e-30)).argmax(1)
            return action, {"log_prob": shifted[rows, action] - np.log(weights.sum(1))}
        best = x.argmax(1)
        anything = self._random.integers(x.shape[1], size=len(x))
        action = np.where(self._random.random(len(x)) < self._said["epsilon"], anything, best)
        return action, {"q": x[rows, action], "value": x[rows, best]} if self._said["records"] else {}


class Client:
    """An environment, or a vector of them, that learns; or with `role="evaluator"` one that judges."""

    def __init__(
        self,
        url: str,
        *,
        observation_space: dict[str, Any] | None = None,
        action_space: dict[str, Any] | None = None,
        environments: int | None = None,
        role: str = "environment",
        autoreset: str = "next_step",  # "same_step": step() is given the next episode's observation and the final one
        mode: str = "central",  # "local": the policy is sent here and acts here, and experience is sent in blocks
        token: str | None = None,
        patience: float = 120.0,  # seconds in which a lost server may come back
        largest: int = 64 << 20,  # bytes of a message
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if urlsplit(url).scheme not in ("ws", "wss"):
            raise ValueError(f"{url!r} is no address of a gateway: ws://HOST:PORT or wss://HOST:PORT")
        self._url, self._patience, self._largest, self._tls = url, patience, largest, tls
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._hello: dict[str, Any] = {"type": "hello", "protocol": PROTOCOL, "role": role, "autoreset": autoreset}
        if observation_space is not None and action_space is not None:
            self._hello["spaces"] = {"observation": observation_space, "action": action_space}
        if environments is not None:
            self._hello["environments"] = environments
        if mode != "central":
            self._hello["mode"] = mode
        self._here: Layers | None = None  # what acts, with the mode "local"
        self._open: tuple[Any, ...] = ()  # the row that waits for what its action gives
        self._rows: list[tuple[Any, ...]] = []  # that are to be sent
        self._connection: Connection | None = None
        self.session, self.seq, self.stored, self.version = "", 0, 0, 0
        self.reconnections = 0
        self.welcome: dict[str, Any] = {}
        self._connect(self._patience)

    def reset(self, observation: Any) -> Any:
        """The first action of an episode. Of a vector: of all environments; otherwise say `reset` in step()."""
        count = self._hello.get("environments")
        if self._here is not None:
            return self._act_here(observation, 0.0, False, False, True)
        return self._ask({"observation": observation, "reset": True if count is None else np.ones(count, bool)})

    def step(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        *,
        reset: Any = None,
        final_observation: Any = None,
    ) -> Any:
        """What the last action led to; the next action. After the end of an episode it is to be ignored."""
        if self._here is not None:
            return self._act_here(observation, reward, terminated, truncated, False if reset is None else reset)
        message = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        if reset is not None:
            message["reset"] = reset
        if final_observation is not None:
            message["final_observation"] = final_observation
        return self._ask(message)

    def act(self, observation: Any, *, reset: Any = None, reward: Any = None) -> Any:
        """The action of a policy that is served (`shoal serve`, with `role="player"`). `reset`: an episode begins;
        `reward` is what the last action gave, for a policy that wants to know."""
        given = {"reset": reset, "reward": reward}
        message = {key: value for key, value in given.items() if value is not None}
        return self._ask({"observation": observation, **message}, "act")

    def close(self) -> None:
        """Say goodbye: the session ends."""
        if self._connection is not None:
            try:
                self._connection.send(pack({"type": "bye"}))
            except OSError:  # it has ended from the other side
                pass
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _act_here(self, observation: Any, reward: Any, terminated: Any, truncated: Any, reset: Any) -> Any:
        """Choose the next action here. Full blocks are sent, and newer weights come with the answer."""
        assert self._here is not None
        alone, count = "environments" not in self._hello, self._hello.get("environments", 1)
        if self._open:
            given = ((reward, np.float32), (terminated, bool), (truncated, bool), (reset, bool))
            self._rows.append(self._open + tuple(np.broadcast_to(np.asarray(x, kind), count) for x, kind in given))
        if len(self._rows) == self.welcome["rows"]:
            self._send_rows()
        seen = np.array(observation)[None] if alone else np.array(observation)
        action, recorded = self._here.act(seen)
        self._open = (seen, action, recorded)
        native = action + self.welcome["spaces"]["action"].get("start", 0)
        return int(native[0]) if alone else native

    def _send_rows(self) -> None:
        assert self._here is not None
        names = ("observation", "action", "recorded", "reward", "terminated", "truncated", "reset")
        columns = dict(zip(names, zip(*self._rows)))
        recorded = columns.pop("recorded")
        columns |= {name: [row[name] for row in recorded] for name in recorded[0]}
        self._rows = []
        block = {name: np.concatenate(parts) for name, parts in columns.items()}
        self._ask({**block, "stamp": self._here.stamp}, "block")

    def _ask(self, message: dict[str, Any], kind: str = "step") -> Any:
        message |= {"type": kind, "seq": self.seq + 1}
        data, deadline, sent = pack(message), None, False
        while True:
            try:
                if self._connection is None:
                    self._connect(self._patience if deadline is None else deadline - time.monotonic())
                    if sent and kind == "block" and not self.welcome["resumed"]:
                        return None  # the server was lost, and may have stored it: it is not sent twice
                assert self._connection is not None
                self._connection.send(data)  # what was sent before is known by its number
                sent = True
                answer = self._receive()
                self.seq, self.stored, self.version = (
                    answer["seq"],
                    answer.get("stored", self.stored),
                    answer["version"],
                )
                if self._here is not None and "policy" in answer:
                    self._here.load(answer["policy"])
                return answer.get("action")
            except (OSError, InvalidHandshake) as problem:
                self._drop(problem)
                deadline = deadline or time.monotonic() + self._patience
                if time.monotonic() > deadline:
                    raise
                self.reconnections += 1

    def _connect(self, patience: float) -> None:
        deadline, pause = time.monotonic() + patience, 0.05
        while True:
            try:
                self._connection = Connection(self._url, self._headers, 10.0, self._largest, self._tls)
                self._connection.receive(10.0)  # the greeting
                hello = self._hello | ({"session": self.session} if self.session else {})
                self._connection.send(pack(hello | {"seq": self.seq, "stored": self.stored}))
                self.welcome = self._receive(10.0)
                self.session = self.welcome["session"]
                if "policy" in self.welcome:
                    self._here = Layers(self.welcome["policy"])
                return
            except (OSError, InvalidHandshake) as problem:
                self._drop(problem)
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(0.5, 2 * pause)

    def _receive(self, timeout: float | None = None) -> dict[str, Any]:
        assert self._connection is not None
        answer: dict[str, Any] = self._connection.receive(timeout)
        if answer["type"] == "end":
            raise Ended(answer["message"])
        if answer["type"] == "error":
            if answer["code"] in ("full", "rate", "internal"):
                raise Lost(1013)
            raise Refused(f"{answer['code']}: {answer['message']}")
        return answer

    def _drop(self, problem: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if isinstance(problem, Lost) and problem.args[0] not in COME_BACK:
            raise Ended(f"the server closed the connection ({problem.args[0]})") from problem
