"""Processes that compute batches. One that dies or hangs costs nobody an answer: its batch goes to another.

They hold no memory of clients, which travels with the batch; so a batch may be computed twice, and the first answer
counts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

import numpy as np

from shoal import tree
from shoal.errors import UserError
from shoal.gateway.wire import Message
from shoal.playing.exported import ExportFiles
from shoal.runs.saved_weights import Found
from shoal.serving.batching import Computed, Done, Lost, Work
from shoal.serving.pipes import Frames, framed
from shoal.serving.sources import Making
from shoal.serving.worker import policy_message

TICK = 0.05  # seconds between two looks at everybody
PING = 1.0  # seconds after which one that has nothing to do is asked whether it lives
LATE = 0.5  # seconds after which a batch is given to another one as well; more where batches take long
TIMES = 10  # how much longer than its slowest batch one may take
UNKNOWN = 10.0  # seconds for the first batch
DEAD = 5.0  # seconds without an answer, beyond that, after which it is killed
LOADING = 120.0  # seconds to start, and to load a policy
BACKOFF = (0.2, 10.0)  # seconds before one is started again: at first, and at most


class WorkerProcess(asyncio.Protocol):
    """One of them, as the server sees it."""

    def __init__(
        self, number: int, heard: Callable[[WorkerProcess, Message], None], lost: Callable[[WorkerProcess], None]
    ) -> None:
        self.number = number
        self._heard, self._lost = heard, lost
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.version = 0  # 0: it is not ready
        self.work: tuple[int, Work, Done] | None = None
        self.since = monotonic()  # it owes an answer, or has nothing to do
        self.owes = 1  # answers; the first is that it has started
        self.doubted = False
        self.failures = 0

    async def start(self, threads: int) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # what we can import, it can
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal.serving.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the server
            )
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    @property
    def free(self) -> bool:
        return self.version > 0 and self.owes == 0 and not self.doubted

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self.owes == 0:
                self.since = monotonic()
            self.owes += 1
            self._transport.write(framed(message))

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self._transport is not None:
            self._transport.abort()

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self.owes -= 1
            self.since = monotonic()
            self.doubted = False
            self._heard(self, message)

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self._lost(self)


class Workers:
    """`count` processes; who is free gets the next batch."""

    def __init__(
        self, count: int, files: Found | ExportFiles, making: Making, *, version: int, tell: Callable[[str], None]
    ) -> None:
        self._count, self._making, self._tell = count, making, tell
        self._files, self._version = files, version
        self._workers: list[WorkerProcess] = []
        self._threads = max(1, (os.cpu_count() or 1) // count)
        self._ids = 0
        self._slowest: dict[int, float] = {}  # seconds that a batch has taken, by its size in binary digits
        self._ticking: asyncio.Task[None] | None = None
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._first: asyncio.Future[None] | None = None
        self.restarts = 0
        self.wake: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Until one of them is ready."""
        self._first = asyncio.get_running_loop().create_future()
        for number in range(self._count):
            await self._add(number, 0)
        self._ticking = asyncio.create_task(self._tick())
        try:
            await asyncio.wait_for(self._first, LOADING)
        except TimeoutError:
            raise UserError(f"No worker was ready within {LOADING:g} s.") from None

    @property
    def free(self) -> bool:
        return any(worker.free for worker in self._workers)

    @property
    def ready(self) -> bool:
        return any(worker.version > 0 and not worker.doubted for worker in self._workers)

    @property
    def pids(self) -> Sequence[int]:
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    def take(self, files: Found | ExportFiles, version: int) -> None:
        """Batches that are started from here on are this policy's: pipes keep the order."""
        self._files, self._version = files, version
        for worker in self._workers:
            if worker.version:
                worker.send(policy_message(files, self._making, version))

    def start(self, work: Work, done: Done) -> None:
        worker = next(worker for worker in self._workers if worker.free)
        self._ids += 1
        worker.work = self._ids, work, done
        worker.send(
            {
                "do": "act",
                "id": self._ids,
                "observation": tree.flatten(work.observation, "observation"),
                "state": dict(work.state),
                "first": work.first,
                "environments": work.environments,
                "explore": work.explore,
            }
        )

    async def close(self) -> None:
        self._closed = True
        for task in (*self._starting, *([self._ticking] if self._ticking else [])):
            task.cancel()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            if worker.process is not None:
                await asyncio.to_thread(worker.process.wait)

    # ---- what they say

    def _heard(self, worker: WorkerProcess, message: Message) -> None:
        match message["is"]:
            case "ready":
                worker.version = message["version"]
                worker.failures = 0
                if self._first is not None and not self._first.done():
                    self._first.set_result(None)
            case "refused":
                if self._first is not None and not self._first.done():
                    self._first.set_exception(UserError(str(message["sentence"])))
                self._tell(f"worker {worker.number} cannot serve: {message['sentence']}")
                worker.kill()
                return
            case "acted" | "failed":
                self._acted(worker, message)
        self.wake()

    def _acted(self, worker: WorkerProcess, message: Message) -> None:
        if worker.work is None or worker.work[0] != message["id"]:
            return
        (_, work, done), worker.work = worker.work, None
        if message["is"] == "failed":
            done(work, RuntimeError(message["kind"]))
            return
        size = len(work.first).bit_length()
        self._slowest[size] = max(0.95 * self._slowest.get(size, 0.0), message["seconds"])
        state = {name: np.array(value) for name, value in message["state"].items()}
        done(work, Computed(np.array(message["action"]), state, message["version"]))

    # ---- who is lost

    def _lost(self, worker: WorkerProcess) -> None:
        if self._closed or worker not in self._workers:
            return
        self._workers.remove(worker)
        if worker.process is not None:
            if worker.process.poll() is None:
                worker.process.kill()
            code = worker.process.wait()
            self._tell(
                f"worker {worker.number} is gone ({_ended(code)}); it is started again, and its batch goes to another"
            )
        self.restarts += 1
        if worker.work is not None:
            (_, work, done), worker.work = worker.work, None
            done(work, Lost())
        task = asyncio.ensure_future(self._again(worker.number, worker.failures + 1))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _again(self, number: int, failures: int) -> None:
        await asyncio.sleep(min(BACKOFF[1], BACKOFF[0] * 2 ** (failures - 1)))
        await self._add(number, failures)

    async def _add(self, number: int, failures: int) -> None:
        worker = WorkerProcess(number, self._heard, self._lost)
        worker.failures = failures
        self._workers.append(worker)
        try:
            await worker.start(self._threads)
        except OSError as problem:
            self._tell(f"worker {number} cannot be started ({problem.strerror}); it is tried again")
            self._workers.remove(worker)
            await self._again(number, failures + 1)
            return
        worker.owes = 0
        worker.send(policy_message(self._files, self._making, self._version))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = monotonic()
            for worker in list(self._workers):
                if worker.owes == 0:
                    if worker.version and now - worker.since > PING:
                        worker.send({"do": "ping"})
                    continue
                silent = now - worker.since
                allowed = self._allowed(worker)
                if silent > allowed and not worker.doubted and worker.version:
                    worker.doubted = True
                    if worker.work is not None:  # its own answer still counts, should it come first
                        _, work, done = worker.work
                        done(work, Lost())
                if silent > allowed + DEAD:
                    self._tell(f"worker {worker.number} has not answered for {silent:.0f} s: it is killed")
                    worker.work = None
                    worker.kill()

    def _allowed(self, worker: WorkerProcess) -> float:
        """Seconds that it may be silent."""
        if not worker.version or worker.owes > 1:
            return LOADING if not worker.version else UNKNOWN
        if worker.work is None:
            return PING
        size = len(worker.work[1].first).bit_length()
        known = [seconds * 2.0 ** max(0, size - of) for of, seconds in self._slowest.items()]
        return max(LATE, TIMES * max(known)) if known else UNKNOWN


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
