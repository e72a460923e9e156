"""The policy server: what is loaded, what computes, who comes in by which door, and how it ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.config import validate
from shoal.errors import UserError
from shoal.experiment.checks import check_device
from shoal.gateway.server import Door, Limits, Listen, Security, new_event_loop
from shoal.playing.policy import TrainedPolicy
from shoal.serving.batching import Batcher
from shoal.serving.computing import Acts, Here
from shoal.serving.following import Follower
from shoal.serving.http import InferenceRoutes
from shoal.serving.metrics import ServingMetrics
from shoal.serving.options import ServeOptions
from shoal.serving.service import ServeService
from shoal.serving.sessions import Sessions
from shoal.serving.sources import Loaded, Making, Source
from shoal.serving.workers import Workers

log = logging.getLogger("shoal.serving")
SWEEP = 5.0  # seconds between two looks for sessions that have expired
TOKEN = "SHOAL_TOKEN"  # the environment's variable with the token, where no file is given


class PolicyServer:
    """Serves a policy on the event loop that starts it."""

    def __init__(
        self,
        source: TrainedPolicy | str | os.PathLike[str],
        options: ServeOptions,
        *,
        token: str | None = None,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        validate(options)
        check_device("device", options.device)
        self.options, self._tell = options, tell
        self._listen = Listen(options.host, options.port)
        self._security = _security(options, token)
        self._security.check(self._listen)
        self._source, self.loaded = _load(source, options)
        self._version = 1
        self.metrics = ServingMetrics()
        self.taken = 0  # newer policies
        self.expired = 0  # sessions
        self.port = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._follower: Follower | None = None

    async def start(self) -> int:
        """Listen; the port."""
        options, policy = self.options, self.loaded.policy
        self._computes = await self._make_computes()
        self._batcher = Batcher(
            self._computes, max_batch=options.max_batch, max_wait=options.max_wait, watch=self.metrics.batch
        )
        self._computes.wake = self._batcher.wake
        sessions = Sessions(policy, expiry=options.session_expiry, most=options.max_sessions)
        self.service = ServeService(
            policy,
            self._batcher,
            sessions,
            self.metrics,
            name=options.name or _model_name(policy.run),
            explore=options.explore,
            may_explore=policy.exploring is not policy.greedy,
            most_rows=options.max_batch,
        )
        routes = InferenceRoutes(
            self.service, self.metrics_text, lambda: self.ready, rate=options.max_rate, most_rows=options.max_batch
        )
        limits = Limits(
            message_bytes=options.max_size,
            connections=options.max_connections,
            connections_per_address=options.max_connections,
            messages_per_second=options.max_rate,
        )
        self._door = Door(self.service, self._listen, security=self._security, limits=limits, routes=routes.routes())
        try:
            self.port = await self._door.start()
        except BaseException:
            await self._computes.close()
            raise
        self._tasks.append(asyncio.create_task(self._sweep()))
        if self._follower is not None:
            self._tasks.append(asyncio.create_task(self._follower.run()))
        return self.port

    async def stop(self) -> None:
        """Answer what is under way, part from everybody, end."""
        for task in self._tasks:
            task.cancel()
        await self.service.drain(self.options.grace)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._batcher.idle(), self.options.grace)  # what HTTP asks for
        await self._door.stop(min(2.0, self.options.grace))
        await self._computes.close()

    @property
    def ready(self) -> bool:
        return self._computes.ready and not self.service.ending

    @property
    def address(self) -> str:
        return str(Listen(self.options.host, self.port))

    @property
    def url(self) -> str:
        return f"{'wss' if self._security.certificate else 'ws'}://{self.address}"

    def metrics_text(self) -> str:
        gauges: dict[str, tuple[str, float]] = {
            "shoal_policy_version": ("How many policies were served so far, this one included.", self._version),
            "shoal_policies_taken_total": ("Newer policies that were taken.", self.taken),
            "shoal_follow_failures_total": (
                "Newer policies that could not be taken.",
                self._follower.failures if self._follower is not None else 0,
            ),
            "shoal_worker_restarts_total": ("Workers that were lost.", getattr(self._computes, "restarts", 0)),
            "shoal_ready": ("Whether requests can be computed.", float(self.ready)),
            "shoal_sessions": ("Sessions that are remembered.", len(self.service.sessions)),
            "shoal_sessions_expired_total": ("Sessions that were forgotten.", self.expired),
            "shoal_connections": ("Connections that are open.", self._door.connections),
            "shoal_requests_waiting": ("Requests that are not computed yet.", self._batcher.waiting),
        }
        if self.loaded.updates is not None:
            gauges["shoal_policy_updates"] = ("Updates of its learner behind the served policy.", self.loaded.updates)
        return self.metrics.text(gauges, self._door.counts, self.loaded.place)

    async def _make_computes(self) -> Here | Workers:
        options = self.options
        if options.follow:
            if self._source is None:
                raise UserError("follow=True needs a run's folder to look into: give that, and not a policy.")
            self._follower = Follower(self._source, self.loaded, self._take, self._tell, options.follow_every)
        if not options.workers:
            return Here(self.loaded.acts, version=self._version)
        if self._source is None or self.loaded.files is None:
            raise UserError("workers need a run's folder to load the policy from: give that, and not a policy.")
        workers = Workers(
            options.workers, self.loaded.files, self._source.making, version=self._version, tell=self._tell
        )
        try:
            await workers.open()
        except BaseException:
            await workers.close()
            raise
        return workers

    def _take(self, loaded: Loaded) -> None:
        """Between two batches: this is the loop's thread, and batches are started on it."""
        self._version += 1
        self.taken += 1
        self.loaded = loaded
        self.service.version = self._version
        if isinstance(self._computes, Workers):
            assert loaded.files is not None
            self._computes.take(loaded.files, self._version)
        else:
            self._computes.take(loaded.acts, self._version)
        updates = f" of {loaded.updates:,} updates" if loaded.updates is not None else ""
        self._tell(f"version {self._version} is served from here on: {loaded.place}{updates}")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP, self.options.session_expiry))
            self.expired += self.service.sessions.expire()


def run_until_told(server: PolicyServer, started: Callable[[PolicyServer], None]) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends at once."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_until_told(server, started))


async def _until_told(server: PolicyServer, started: Callable[[PolicyServer], None]) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    await server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    started(server)
    await told.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await server.stop()


class Serving:
    """A policy that is served by a thread of this program, until `stop()`; also `with shoal.serve(…) as serving:`."""

    def __init__(self, server: PolicyServer) -> None:
        self._server = server
        self._loop = new_event_loop()
        started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="shoal-serve", daemon=True)
        self._thread.start()
        self.port: int = started.result()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def version(self) -> int:
        return self._server.service.version

    def metrics(self) -> str:
        """As GET /metrics gives them."""
        return self._server.metrics_text()

    def wait(self) -> None:
        """Until it is stopped, by another thread or by Ctrl-C here."""
        try:
            while self._thread.is_alive():
                self._thread.join(1.0)
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """Answer what is under way and end."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{self._server.loaded.policy.algorithm} of {self._server.loaded.place} at {self.url}>"

    def _run(self, started: concurrent.futures.Future[int]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            port = self._loop.run_until_complete(self._server.start())
        except BaseException as problem:
            started.set_exception(problem)
            self._loop.close()
            return
        started.set_result(port)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def start(source: Any, given: Mapping[str, Any], *, token: str | None, tell: Callable[[str], None] | None) -> Serving:
    """What `shoal.serve` does."""
    known = ServeOptions.__dataclass_fields__
    if unknown := sorted(given.keys() - known.keys()):
        raise UserError(f"shoal.serve() has no option {unknown[0]!r}: it has token, {', '.join(known)}.")
    options = ServeOptions(**{"port": 0, **given})
    return Serving(PolicyServer(source, options, token=token, tell=tell or log.warning))


def _load(source: Any, options: ServeOptions) -> tuple[Source | None, Loaded]:
    if isinstance(source, TrainedPolicy):
        if options.explore and source.exploring is source.greedy:
            raise UserError("explore=True is not for an export, which holds the greedy policy alone.")
        return None, Loaded(Acts(source, options.explore), None, str(source.run))
    making = Making(device=options.device, seed=options.seed, trust=options.trust, explore=options.explore)
    found = Source(source, making)
    if options.follow:
        found.check_follows()
    return found, found.load()


def _security(options: ServeOptions, token: str | None) -> Security:
    if token is None and options.token_file is not None:
        try:
            token = Path(options.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise UserError(f"--token-file {options.token_file} cannot be read ({why}).") from None
        if not token:
            raise UserError(
                f"--token-file {options.token_file} is empty: put a token of 16 characters or more into it."
            )
    token = token or os.environ.get(TOKEN) or None
    certificate, key = (Path(each) if each else None for each in (options.tls_certificate, options.tls_key))
    return Security(token, certificate, key)


def _model_name(run: Path) -> str:
    """The folder's, as it may stand in an address."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.abspath(run)).name).strip("-") or "policy"
