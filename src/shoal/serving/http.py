"""The same policy for HTTP: Open Inference v2 (as Triton, KServe and their clients speak it), and metrics.

Tensors are JSON, or bytes behind the JSON (Triton's binary extension). A recurrent policy's memory is kept by
`sequence_id`, as Triton keeps it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import monotonic
from typing import Any

import numpy as np
from aiohttp import web

from shoal import tree
from shoal.gateway.messages import Refused
from shoal.gateway.server import Route
from shoal.gateway.wire import WireError
from shoal.serving.batching import Answer
from shoal.serving.batching import Refused as NotAnswered
from shoal.serving.metrics import CONTENT_TYPE
from shoal.serving.service import ServeService
from shoal.serving.sessions import Session
from shoal.types import Array

DATATYPES = {
    "BOOL": "bool",
    **{f"{'U' * (kind == 'u')}INT{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
HEADER_LENGTH = "Inference-Header-Content-Length"
MOST_AXES = 16
RATES = 4096  # addresses whose rates are kept


class InferenceRoutes:
    """What is answered over HTTP."""

    def __init__(self, service: ServeService, metrics_text: Any, ready: Any, rate: float, most_rows: int) -> None:
        self._service, self._metrics_text, self._ready = service, metrics_text, ready
        self._rate, self._most_rows = rate, most_rows
        self._left: dict[str, tuple[float, float]] = {}  # requests that an address may still make, and when that was
        space = service.policy.observation_space
        self._leaves = tree.leaf_spaces(space, "observation")

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/metrics", self._metrics),
            Route("GET", "/v2", self._server),
            Route("GET", "/v2/health/live", self._live, open=True),
            Route("GET", "/v2/health/ready", self._is_ready, open=True),
            Route("GET", "/v2/models/{model}", self._model),
            Route("GET", "/v2/models/{model}/ready", self._model_ready),
            Route("POST", "/v2/models/{model}/infer", self._infer),
        ]

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics_text().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _is_ready(self, request: web.Request) -> web.Response:
        ready = self._ready()
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _server(self, request: web.Request) -> web.Response:
        from shoal import __version__

        return web.json_response(
            {"name": "shoal", "version": __version__, "extensions": ["binary_tensor_data", "sequence"]}
        )

    async def _model_ready(self, request: web.Request) -> web.Response:
        self._check_model(request)
        return await self._is_ready(request)

    async def _model(self, request: web.Request) -> web.Response:
        self._check_model(request)
        service, action = self._service, self._service.policy.action_space
        inputs = [
            {"name": name, "datatype": _datatype(leaf.dtype), "shape": [-1, *leaf.shape]}
            for name, leaf in self._leaves.items()
        ]
        if service.policy.wants_reward:
            inputs.append({"name": "reward", "datatype": "FP32", "shape": [-1]})
        output = {"name": "action", "datatype": _datatype(action.dtype), "shape": [-1, *(action.shape or ())]}
        return web.json_response(
            {
                "name": service.name,
                "versions": [str(service.version)],
                "platform": f"shoal_{service.policy.algorithm}",
                "inputs": inputs,
                "outputs": [output],
            }
        )

    async def _infer(self, request: web.Request) -> web.Response:
        arrived = monotonic()
        self._check_model(request)
        if self._service.ending:
            raise Refused("full", "the server stops: come back later")
        self._pace(request.remote or "?")
        service = self._service
        try:
            body, binary = _split(await request.read(), request.headers.get(HEADER_LENGTH))
            arrays = _inputs(body, binary, {*self._leaves, "reward"})
            parameters = _map(body.get("parameters", {}), "parameters")
            asked = body.get("outputs")
            rows = self._rows(arrays)
            session = self._session(parameters, rows)
            answer = await self._answer(session, rows, arrays, parameters)
        except (Refused, WireError):
            service.metrics.requests["http", "refused"] += 1
            raise
        if parameters.get("sequence_end"):
            service.sessions.end(session.name)
        service.metrics.answered("http", monotonic() - arrived)
        head: dict[str, Any] = {"model_name": service.name, "model_version": str(answer.version)}
        if isinstance(body.get("id"), str):
            head["id"] = body["id"][:256]
        return _response(head, answer.action, _wants_bytes(asked, parameters))

    async def _answer(
        self, session: Session, rows: int, arrays: Mapping[str, Array], parameters: Mapping[str, Any]
    ) -> Answer:
        service = self._service
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer | NotAnswered] = loop.create_future()

        def done(answer: Answer | NotAnswered) -> None:
            session.under_way -= 1
            if not future.done():
                future.set_result(answer)

        observation = tree.nest(service.policy.observation_space, arrays, "observation")
        message: dict[str, Any] = {"observation": _as_sent(observation)}
        if "reward" in arrays:
            message["reward"] = arrays["reward"]
        if parameters.get("sequence_start") is True:
            message["reset"] = np.ones(rows, np.bool_)
        session.under_way += 1
        try:
            service.ask(session, service.reader(rows), message, done)
        except BaseException:
            session.under_way -= 1
            raise
        answer = await future
        if isinstance(answer, NotAnswered):
            raise Refused("full" if answer.busy else "internal", str(answer))
        return answer

    def _session(self, parameters: Mapping[str, Any], rows: int) -> Session:
        """That of a sequence; without one every request is an episode of its own."""
        sequence = parameters.get("sequence_id", 0)
        if type(sequence) not in (int, str) or len(str(sequence)) > 64:
            raise WireError("sequence_id must be a whole number, or a string of at most 64 characters")
        if sequence in (0, "") or not self._service.policy.remembers:
            return Session("", self._service.sessions.lane(rows), rows)
        session, _ = self._service.sessions.open(f"sequence:{sequence}", rows)
        return session

    def _rows(self, arrays: Mapping[str, Array]) -> int:
        missing = [name for name in self._leaves if name not in arrays]
        if missing:
            raise WireError(
                f"the input {missing[0]!r} is missing: GET /v2/models/{self._service.name} says what is needed"
            )
        sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        if len(set(sizes.values())) != 1:
            raise WireError(f"the inputs have different numbers of rows: {sizes}")
        rows = next(iter(sizes.values()))
        if not 1 <= rows <= self._most_rows:
            raise WireError(f"from 1 to {self._most_rows} observations are acted on at once, and not {rows}")
        return rows

    def _check_model(self, request: web.Request) -> None:
        if request.match_info["model"] != self._service.name:
            raise web.HTTPNotFound(reason=f"the model served here is {self._service.name}")

    def _pace(self, address: str) -> None:
        if not self._rate:
            return
        now = monotonic()
        if len(self._left) > RATES:
            self._left.clear()
        left, when = self._left.get(address, (self._rate, now))
        left = min(self._rate, left + (now - when) * self._rate)
        self._left[address] = (left - 1.0 if left >= 1.0 else left, now)
        if left < 1.0:
            raise Refused("rate", f"at most {self._rate:g} requests a second are taken from one address")


# ---- tensors


def _split(body: bytes, length: str | None) -> tuple[Mapping[str, Any], memoryview]:
    """The JSON of a request and the bytes behind it."""
    end = len(body)
    if length is not None:
        if not (length.isascii() and length.isdecimal() and int(length) <= len(body)):
            raise WireError(f"{HEADER_LENGTH} is {length[:20]!r}, and the request has {len(body)} bytes")
        end = int(length)
    try:
        parsed = json.loads(body[:end])
    except (ValueError, RecursionError):
        raise WireError("the request is no JSON") from None
    return _map(parsed, "request"), memoryview(body)[end:]


def _map(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WireError(f"{what} must be a JSON object")
    return value


def _inputs(body: Mapping[str, Any], binary: memoryview, known: set[str]) -> dict[str, Array]:
    given = body.get("inputs")
    if not isinstance(given, list) or not given:
        raise WireError("inputs must be a list of tensors")
    if len(given) > len(known):
        raise WireError(f"at most {len(known)} inputs are known: {', '.join(sorted(known))}")
    arrays: dict[str, Array] = {}
    at = 0
    for each in given:
        tensor = _map(each, "an input")
        name = tensor.get("name")
        if name not in known or name in arrays:
            raise WireError(
                f"the input {str(name)[:80]!r} is unknown, or there twice: known are {', '.join(sorted(known))}"
            )
        dtype = np.dtype(DATATYPES[kind]) if (kind := tensor.get("datatype")) in DATATYPES else None
        if dtype is None:
            raise WireError(f"{name}: the datatype {str(kind)[:20]!r} is not one of {', '.join(DATATYPES)}")
        shape = tensor.get("shape")
        if (
            not isinstance(shape, list)
            or len(shape) > MOST_AXES
            or not all(type(n) is int and 0 <= n < 1 << 31 for n in shape)
        ):
            raise WireError(f"{name}: shape must be a list of at most {MOST_AXES} sizes")
        size = _map(tensor.get("parameters", {}), "parameters").get("binary_data_size")
        if size is None:
            arrays[name] = _from_json(tensor.get("data"), dtype, shape, name)
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - at:
            raise WireError(f"{name}: binary_data_size is more than was sent")
        arrays[name] = _from_bytes(binary[at : at + size], dtype, shape, name)
        at += size
    return arrays


def _from_json(data: Any, dtype: np.dtype[Any], shape: list[int], name: str) -> Array:
    if not isinstance(data, list):
        raise WireError(f"{name}: data must be a list of numbers")
    try:
        array = np.asarray(data)
        if array.dtype.kind not in "biuf" or (dtype.kind in "iu" and array.dtype.kind == "f"):
            raise ValueError("kind")
        with np.errstate(over="ignore"):
            return array.astype(dtype.newbyteorder("=")).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise WireError(f"{name}: data must be numbers of {dtype.name}, as many as the shape {shape} says") from None


def _from_bytes(data: memoryview, dtype: np.dtype[Any], shape: list[int], name: str) -> Array:
    array = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype)
    try:
        array = array.reshape(shape)
    except ValueError:
        raise WireError(f"{name}: {len(data)} bytes are no {dtype.name} of the shape {shape}") from None
    return array != 0 if dtype.kind == "b" else array.astype(dtype.newbyteorder("="), copy=False)


def _wants_bytes(outputs: Any, parameters: Mapping[str, Any]) -> bool:
    """Whether the answer's tensor goes behind the JSON."""
    if parameters.get("binary_data_output") is True:
        return True
    if outputs is None:
        return False
    if not isinstance(outputs, list) or not all(
        isinstance(each, dict) and each.get("name") == "action" for each in outputs
    ):
        raise WireError("outputs may name 'action' alone")
    return any(_map(each.get("parameters", {}), "parameters").get("binary_data") is True for each in outputs)


def _response(head: dict[str, Any], action: Array, as_bytes: bool) -> web.Response:
    output: dict[str, Any] = {"name": "action", "datatype": _datatype(action.dtype), "shape": list(action.shape)}
    if not as_bytes:
        output["data"] = action.ravel().tolist()
        return web.json_response(head | {"outputs": [output]})
    data = np.ascontiguousarray(action, action.dtype.newbyteorder("<")).tobytes()
    output["parameters"] = {"binary_data_size": len(data)}
    text = json.dumps(head | {"outputs": [output]}).encode()
    headers = {HEADER_LENGTH: str(len(text)), "Content-Type": "application/octet-stream"}
    return web.Response(body=text + data, headers=headers)


def _datatype(dtype: Any) -> str:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return "BOOL"
    return f"{'FP' if kind.kind == 'f' else 'UINT' if kind.kind == 'u' else 'INT'}{8 * kind.itemsize}"


def _as_sent(value: Any) -> Any:
    """Tuples are lists on the wire."""
    if isinstance(value, dict):
        return {key: _as_sent(part) for key, part in value.items()}
    return [_as_sent(part) for part in value] if isinstance(value, tuple) else value
