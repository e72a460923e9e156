"""Requests a second and their latency: `shoal serve` beside a server of openpi's form and Ray Serve, in turns.

    python -m bench.serving [--peers shoal openpi ray] [--networks mlp cnn] [--clients 1 8 64] [--seconds 3]
                            [--rounds 3] [--peer-python PYTHON] [--workers 0] [--json FILE]

Every server has one core for all its processes (taskset), the clients have another. All are given the same
observation; a client asks again when it is answered. Of the rounds the median is told. Ray is measured alone: its own
processes keep a core busy also when nobody asks. `--peer-python` is the
interpreter of an environment with what the peers need; without it, one is made below .bench.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from bench.peers import environment
from bench.serving.load import Point, measure, websocket_request
from bench.serving.runs import make_run

from shoal.gateway.wire import pack

HERE = Path(__file__).parent
OBSERVATIONS = {"mlp": np.zeros(4, np.float32), "cnn": np.zeros((4, 84, 84), np.uint8)}
SERVER_CORE, CLIENT_CORE = 0, 1
START = 90.0  # seconds for a server to listen


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def server(command: list[str], port: int, core: int | None) -> Iterator[subprocess.Popen[bytes]]:
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    process = subprocess.Popen(
        [*pinned, *command],
        stdout=subprocess.PIPE,
        bufsize=0,  # what lies in a buffer, select does not see
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        _wait(process)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has left in its session


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Until it prints that it listens."""
    assert process.stdout is not None
    end = time.monotonic() + START
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 1.0)[0]:
            line = process.stdout.readline()
            if b"listening" in line:
                return
            if not line:
                break
    raise SystemExit(f"no server came up: {process.args}")


def command_of(peer: str, network: str, port: int, run: Path, options: argparse.Namespace) -> list[str]:
    if peer == "shoal":
        workers = ["--workers", str(options.workers)] if options.workers else []
        return [sys.executable, "-m", "shoal", "serve", str(run), "--port", str(port), *workers]
    file = {"openpi": "openpi_form.py", "ray": "ray_form.py"}[peer]
    return [options.peer_python, str(HERE / file), network, str(port)]


def request_of(peer: str, network: str, port: int) -> bytes:
    observation = OBSERVATIONS[network]
    if peer == "ray":
        body = observation.tobytes()
        return f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    return websocket_request(pack({"observation": observation}))


def measure_group(
    peers: list[str],
    network: str,
    run: Path,
    options: argparse.Namespace,
    points: dict[tuple[str, str, int], list[Point]],
) -> None:
    """Servers that wait for requests beside one another, asked in turns."""
    with contextlib.ExitStack() as servers:
        ports = {peer: free_port() for peer in peers}
        for peer, port in ports.items():
            servers.enter_context(server(command_of(peer, network, port, run, options), port, SERVER_CORE))
        for _ in range(options.rounds):
            for clients in options.clients:
                for peer, port in ports.items():
                    request = request_of(peer, network, port)
                    point = measure(port, clients, request, options.seconds, http=peer == "ray")
                    points.setdefault((network, peer, clients), []).append(point)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", default=["shoal", "openpi", "ray"], choices=["shoal", "openpi", "ray"])
    parser.add_argument("--networks", nargs="+", default=["mlp", "cnn"], choices=["mlp", "cnn"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.peer_python is None and set(options.peers) != {"shoal"}:
        options.peer_python = str(environment("serving"))
    os.sched_setaffinity(0, {CLIENT_CORE})
    points: dict[tuple[str, str, int], list[Point]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for network in options.networks:
            run = make_run(Path(folder) / network, network)
            for group in [
                [peer for peer in options.peers if peer != "ray"],
                [peer for peer in options.peers if peer == "ray"],
            ]:
                measure_group(group, network, run, options, points)
    rows = [_median(network, peer, found) for (network, peer, _), found in points.items()]
    print(f"{'network':8} {'server':8} {'clients':>7} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} {'failed':>6}")
    shown = "{network:8} {server:8} {clients:7} {requests_per_second:11,.0f} {p50_ms:8.2f} {p99_ms:8.2f} {failed:6}"
    for row in rows:
        print(shown.format(**row))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def _median(network: str, peer: str, found: list[Point]) -> dict[str, object]:
    middle = {
        name: statistics.median(getattr(point, name) for point in found)
        for name in ("requests_per_second", "p50_ms", "p99_ms")
    }
    return {
        "network": network,
        "server": peer,
        **asdict(found[0]),
        **middle,
        "failed": sum(point.failed for point in found),
    }


if __name__ == "__main__":
    main()
