"""Steps a second of simulators outside, beside as many actors of one environment each, and beside a server that does
nothing but answer.

    python -m bench.clients [--clients 16] [--seconds 12] [--repeat 3]

IMPALA on CartPole-v1, the same config on both sides, in turns; the median. Every client is a process of its own with
one environment (clients/python/cartpole.py). The bare server answers each message with an action as soon as it has read
it, without a policy, a stream or a learner: what the library and so many processes can do on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from bench.peers import last_line

from shoal.gateway.server import new_event_loop
from shoal.gateway.wire import pack, unpack

ROOT = Path(__file__).parents[1]
CONFIG = ["--batch", "16", "--queue", "16", "--unroll", "20"]
WARM = 4.0  # seconds of a run that do not count: processes start
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Clients:
    """Processes with an environment each."""

    def __init__(self, port: int, count: int, kind: str = "learn") -> None:
        command = [sys.executable, str(ROOT / "clients/python/cartpole.py"), f"ws://127.0.0.1:{port}", kind]
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._processes = [subprocess.Popen(command, env=os.environ | ALONE, **nowhere) for _ in range(count)]  # type: ignore[call-overload]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def outside(clients: int, seconds: float, *words: str, kind: str = "learn") -> float:
    with tempfile.TemporaryDirectory() as folder:
        port, run = free_port(), Path(folder) / "run"
        command = [sys.executable, "-m", "shoal", "train", "impala", "--env", "external", *CONFIG, *words]
        command += ["--listen", f"127.0.0.1:{port}", "--stop-seconds", str(seconds + WARM), "--run-dir", str(run)]
        with Clients(port, clients, kind):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    counted = [(row["seconds"], row["counts"].get("env_steps", 0.0)) for row in rows if row["kind"] == "progress"]
    return rate(counted)


def rate(counted: list[tuple[float, float]]) -> float:
    """Of (seconds, steps), without the first seconds."""
    start = next(one for one in counted if one[0] >= counted[0][0] + WARM)
    return (counted[-1][1] - start[1]) / (counted[-1][0] - start[0])


def actors(count: int, seconds: float) -> float:
    command = [sys.executable, "-m", "shoal", "bench", "throughput", "impala", "--env", "CartPole-v1", "--no-limits"]
    command += [*CONFIG, "--actors", str(count), "--envs-per-actor", "1", "--seconds", str(seconds), "--json"]
    return float(last_line(*command)["env_steps_per_second"])


def bare(clients: int, seconds: float) -> float:
    """A server of the same library on a core that it shares with its clients."""
    counted: list[tuple[float, float]] = []

    async def talk(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(compress=False)
        await connection.prepare(request)
        await connection.send_bytes(pack({"type": "greeting", "protocol": 1, "server": "train", "token": False}))
        await connection.receive()
        await connection.send_bytes(pack({"type": "welcome", "session": "a", "seq": 0}))
        async for message in connection:
            if message.type is WSMsgType.BINARY:
                seq = unpack(message.data).get("seq", 0)
                await connection.send_bytes(
                    pack({"type": "action", "seq": seq, "action": next(chosen) & 1, "version": 0, "stored": 0})
                )
        return connection

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/", talk)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        with Clients(port, clients):
            begun = time.monotonic()
            while time.monotonic() - begun < seconds + WARM + 2.0:
                await asyncio.sleep(0.5)
                counted.append((time.monotonic() - begun, float(steps())))
        await runner.cleanup()

    chosen: Any = itertools.count()

    def steps() -> int:
        return int(chosen.__reduce__()[1][0])

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
    return rate([one for one in counted if one[1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    sides: dict[str, Callable[[int, float], float]] = {
        "actors of one environment": actors,
        "clients": outside,
        "clients that act by themselves": functools.partial(outside, kind="local"),
        "clients of a bare server": bare,
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeat):
        for name, measure in sides.items():
            found[name].append(measure(options.clients, options.seconds))
            print(f"{options.clients} {name}: {found[name][-1]:,.0f} steps/s", flush=True)
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    base = middle["actors of one environment"]
    for name, steps in middle.items():
        print(f"| {options.clients} {name} | {steps:,.0f} | {steps / base:.0%} |")


if __name__ == "__main__":
    main()
