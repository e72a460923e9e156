"""Newer checkpoints under load.

    python -m bench.serving.newer [--clients 64] [--seconds 10] [--every 0.5] [--workers 0]

A run's folder gets a checkpoint every so often while `shoal serve RUN --follow` is asked as fast as it answers. Told:
how many requests failed, whether a client ever saw an older version after a newer one, and the latency meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from bench.serving.__main__ import CLIENT_CORE, OBSERVATIONS, SERVER_CORE, free_port, server
from bench.serving.load import measure, websocket_request
from bench.serving.runs import make_run

from shoal.checkpoints import Checkpoints
from shoal.gateway.wire import pack, unpack
from shoal.runs import directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "mlp", "mlp")
        weights = dict(directory.read_weights(run))
        (run / directory.WEIGHTS).unlink()
        checkpoints = Checkpoints(run / directory.CHECKPOINTS)
        checkpoints.save({"weights": weights}, {"updates": 0})
        ended = threading.Event()
        saved = [1]

        def train() -> None:
            random = np.random.default_rng(0)
            while not ended.wait(options.every):
                new = {
                    name: value + random.normal(0, 0.1, value.shape).astype(value.dtype)
                    for name, value in weights.items()
                }
                checkpoints.save({"weights": new}, {"updates": saved[0]})
                saved[0] += 1

        versions = [0] * options.clients
        back = 0

        def watch(client: int, body: bytes) -> None:
            nonlocal back
            version = unpack(body)["version"]
            back += version < versions[client]
            versions[client] = version

        port = free_port()
        follow = ["--follow", "--follow-every", "0.1", "--workers", str(options.workers)]
        command = [sys.executable, "-m", "shoal", "serve", str(run), "--port", str(port), *follow]
        os.sched_setaffinity(0, {CLIENT_CORE})
        with server(command, port, SERVER_CORE):
            training = threading.Thread(target=train)
            training.start()
            request = websocket_request(pack({"observation": OBSERVATIONS["mlp"]}))
            point = measure(port, options.clients, request, options.seconds, watch=watch)
            ended.set()
            training.join()
            time.sleep(0.1)
    print(
        f"{point.answered:,} requests of {options.clients} clients, {point.failed} failed; {saved[0]} checkpoints, "
        f"versions up to {max(versions)}, {back} went back; {point.requests_per_second:,.0f} requests/s, "
        f"p50 {point.p50_ms:.2f} ms, p99 {point.p99_ms:.2f} ms"
    )


if __name__ == "__main__":
    main()
