"""What encryption between machines costs: calls between two network namespaces, with and without TLS, in turns.

    python -m bench.tls

needs root and `ip` (iproute2): it makes two namespaces that are connected by a pair of virtual interfaces, and removes
them at the end. The two ends are processes of this machine, so both share its processors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.program import Client, Context
from shoal.runtime.network.identity import Authority, Identity
from shoal.runtime.network.listener import Listener
from shoal.runtime.network.presence import make_lanes
from shoal.runtime.network.rpc import serve

SIZE = 1_000_000  # bytes of the large message
CALLEE, CALLER = "10.231.7.1", "10.231.7.2"


class Target:
    """What is called."""

    def __init__(self) -> None:
        self._array = np.ones(SIZE, np.uint8)

    def nothing(self) -> None: ...

    def take(self, array: Any) -> None: ...

    def give(self) -> Any:
        return self._array


# ---- the two ends, each in its namespace; they talk to the parent in pickles


def _tell(message: Any) -> None:
    sys.stdout.buffer.write(pickle.dumps(message))
    sys.stdout.buffer.flush()


def _certified() -> Identity:
    identity = Identity(pickle.load(sys.stdin.buffer))
    _tell(identity.public_key)
    identity.certify(pickle.load(sys.stdin.buffer))
    return identity


def callee() -> None:
    identity, target = _certified(), Target()
    listeners = [
        Listener(identity, CALLEE, lambda one: serve(target, one, Context("callee")), near=False, secure=secure)
        for secure in (False, True)
    ]
    for listener in listeners:
        listener.open()
    _tell([listener.endpoint for listener in listeners])
    threading.Event().wait()


def caller(calls: int, rounds: int) -> None:
    identity = _certified()
    endpoints = pickle.load(sys.stdin.buffer)
    clients = {
        name: Client("callee", *make_lanes("callee", endpoint, identity))
        for name, endpoint in zip(("plain", "tls"), endpoints)
    }
    began = time.perf_counter()
    for _ in range(20):
        for lane in make_lanes("callee", endpoints[1], identity):
            lane.close()
    connecting = (time.perf_counter() - began) / 40
    found: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            found[name].append(_measure(client, calls))
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()
    }
    _tell({**medians, "tls_connect_ms": round(connecting * 1e3, 2)})


def _measure(client: Any, calls: int) -> dict[str, float]:
    array = np.ones(SIZE, np.uint8)
    times = [_seconds(client.nothing) for _ in range(calls)]
    taking = statistics.median(_seconds(client.take, array) for _ in range(calls // 5))
    giving = statistics.median(_seconds(client.give) for _ in range(calls // 5))
    return {
        "call_us": round(statistics.median(times) * 1e6, 1),
        "send_MB_per_s": round(SIZE / taking / 1e6),
        "receive_MB_per_s": round(SIZE / giving / 1e6),
    }


def _seconds(method: Any, *args: Any) -> float:
    began = time.perf_counter()
    method(*args)
    return time.perf_counter() - began


# ---- the namespaces


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    names = (f"shoal-a-{os.getpid()}", f"shoal-b-{os.getpid()}")
    cables = (f"va{os.getpid()}", f"vb{os.getpid()}")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(names, cables, (CALLEE, CALLER)):
            _ip("link", "set", cable, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", cable, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _end(namespace: str, authority: Authority, *words: str) -> subprocess.Popen[bytes]:
    """One of the two ends, with a certificate of this run."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-m", "bench.tls", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _send(process, authority.trust)
    _send(process, authority.sign(_receive(process)))
    return process


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(message))
    process.stdin.flush()


def _receive(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return pickle.load(process.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--end", choices=["callee", "caller"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.end == "callee":
        return callee()
    if given.end == "caller":
        return caller(given.calls, given.rounds)
    authority = Authority()
    with namespaces() as (one, other):
        words = ("--calls", str(given.calls), "--rounds", str(given.rounds))
        ends: list[subprocess.Popen[bytes]] = []
        try:
            ends.append(_end(one, authority, "--end", "callee"))
            endpoints = _receive(ends[0])
            ends.append(_end(other, authority, "--end", "caller", *words))
            _send(ends[1], endpoints)
            print(json.dumps(_receive(ends[1]), indent=2))
        finally:
            for process in ends:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
