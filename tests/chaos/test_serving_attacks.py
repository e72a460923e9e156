"""`shoal serve` under attack: workers that die or stand still, floods, slow and hostile clients, the end under load.

In each of them others are answered all along.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
import websockets.exceptions

from saved_runs import saved_run
from serving_clients import Client, http

OBSERVATION = np.ones(4, np.float32)


class Load:
    """Clients that ask all the time; what they were answered, how long they waited at most, how they ended."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.answered, self.errors, self.longest = 0, [], 0.0  # type: int, list[Any], float
        self.ends: list[int | None] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(port,)) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, port: int) -> None:
        with Client(port) as client:
            try:
                while not self._stop.is_set():
                    begun = time.monotonic()
                    answer = client.act(OBSERVATION)
                    self.longest = max(self.longest, time.monotonic() - begun)
                    if answer["type"] != "action":
                        self.errors.append(answer)
                    self.answered += 1
            except websockets.exceptions.ConnectionClosed as closed:
                self.ends.append(closed.rcvd.code if closed.rcvd else None)

    def wait(self, more: int) -> None:
        """Until so many more were answered."""
        wanted, end = self.answered + more, time.monotonic() + 30
        while self.answered < wanted:
            assert time.monotonic() < end, "nobody is answered"
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("runs") / "cartpole", "ppo", env="CartPole-v1")


@contextmanager
def serving(run: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "shoal", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            found = next((match for line in lines if (match := re.search(r"listening on ws://.*:(\d+)", line))), None)
            assert found is not None, process.stderr.read() if process.stderr else ""
            yield process, int(found[1])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[int]:
    with serving(run, "--max-size", "65536", "--max-connections", "64") as (process, port):
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_killed_and_stopped_workers_cost_nobody_an_answer(run: Path) -> None:
    with serving(run, "--workers", "2") as (process, port):
        load = Load(port)
        load.wait(50)
        workers = psutil.Process(process.pid).children()
        assert len(workers) == 2
        workers[0].send_signal(signal.SIGKILL)
        load.wait(50)
        workers[1].send_signal(signal.SIGSTOP)
        load.wait(50)  # by the one that was started again, or was left
        end = time.monotonic() + 40
        while workers[1].is_running() and workers[1].status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, "the stopped one was not killed"
            time.sleep(0.1)
        load.wait(50)
        load.stop()
        assert not load.errors
        assert load.longest < 15
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 0
        assert re.search(r"worker \d is gone \(killed by signal 9\)", told)
        assert re.search(r"worker \d has not answered for \d+ s: it is killed", told)
        assert "Traceback" not in told


def test_sigterm_under_load_answers_what_was_sent_and_says_goodbye(run: Path) -> None:
    with serving(run) as (process, port):
        load = Load(port, clients=8)
        with Client(port) as idle:
            load.wait(300)
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=20)
            assert process.returncode == 0
            load.stop()
            assert not load.errors
            assert load.ends == [1001] * 8
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                idle.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        assert told == ""


def test_hostile_clients_change_nothing_for_others(server: int) -> None:
    load = Load(server, clients=2)
    load.wait(10)
    hostile: list[socket.socket] = []
    try:
        for _ in range(20):  # headers that never end
            slow = socket.create_connection(("127.0.0.1", server))
            slow.sendall(b"GET / HTTP/1.1\r\nX-A: b\r\n")
            hostile.append(slow)
        for garbage in (
            os.urandom(3000),
            b"GET /" + b"a" * 20000,
            b"\x16\x03\x01" + bytes(500),
            b"POST / HTTP/1.1\r\n",
        ):
            raw = socket.create_connection(("127.0.0.1", server))
            raw.sendall(garbage)
            hostile.append(raw)
        load.wait(20)
        assert http(server, "/v2/models/cartpole/infer", b"x" * 100_000)[0] == 413
        nested: Any = []
        for _ in range(900):
            nested = [nested]
        arrays = [
            {b"__ndarray__": True, b"data": b"abc", b"dtype": "|O", b"shape": [1]},
            {b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": [1 << 40]},
            {b"__ndarray__": True, b"data": b"abcd", b"dtype": "<f4", b"shape": [-1]},
            {b"__ndarray__": True, b"data": b"12345678" * 2, b"dtype": "<c16", b"shape": [1]},
            nested,
        ]
        for array in arrays:
            with Client(server) as client:
                client.socket.send(msgpack.packb({"type": "act", "seq": 1, "observation": array}))
                assert client.receive()["type"] == "error"
        for frame in (msgpack.packb([1, 2]), b"\xc1", b"", msgpack.packb({"type": "act", "seq": -1})):
            with Client(server) as client:
                client.socket.send(frame)
                assert client.receive()["type"] == "error"
        with Client(server) as client:
            client.socket.send(bytes(70_000))
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                client.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        load.wait(20)
        for each in hostile:
            each.close()
    finally:
        load.stop()
    assert not load.errors
    assert not load.ends
    assert load.longest < 5


def test_a_client_that_asks_without_end_and_takes_no_answer_is_held_back(run: Path) -> None:
    with serving(run) as (process, port):
        load = Load(port, clients=2)
        load.wait(10)
        with Client(port) as flood:
            raw = flood.socket.socket
            raw.setblocking(False)
            body = msgpack.packb(
                {
                    "type": "act",
                    "observation": {
                        b"__ndarray__": True,
                        b"data": OBSERVATION.tobytes(),
                        b"dtype": "<f4",
                        b"shape": [4],
                    },
                }
            )
            frame = bytes([0x82, 0x80 | len(body)]) + bytes(4) + body
            before, sent, left = psutil.Process(process.pid).memory_info().rss, 0, b""
            end = time.monotonic() + 3
            while time.monotonic() < end:
                left = left or frame * 500
                try:
                    left = left[raw.send(left) :]
                    sent += 1
                except BlockingIOError:
                    time.sleep(0.01)
            grown = psutil.Process(process.pid).memory_info().rss - before
        load.wait(20)
        load.stop()
        assert not load.errors
        assert sent > 1
        assert grown < 64 << 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
