"""A policy server of openpi's form, for comparison: websockets' asyncio server, metadata first, one observation at a
time, computed within the event loop, as openpi/serving/websocket_policy_server.py does it. Its own words, no Shoal.

    python bench/serving/openpi_form.py mlp|cnn PORT
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgpack
import numpy as np
import torch
import websockets.asyncio.server
from networks import make_network


def encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    raise TypeError(type(value))


def decode(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        return np.ndarray(buffer=value[b"data"], dtype=np.dtype(value[b"dtype"]), shape=value[b"shape"])
    return value


class Server:
    def __init__(self, network: torch.nn.Module) -> None:
        self.network = network

    def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            seen = torch.from_numpy(np.array(observation["observation"])[None])
            return {"actions": self.network(seen).argmax(-1)[0].numpy()}

    async def handle(self, connection: websockets.asyncio.server.ServerConnection) -> None:
        packer = msgpack.Packer(default=encode)
        await connection.send(packer.pack({}))
        before = None
        while True:
            begun = time.monotonic()
            try:
                message = msgpack.unpackb(await connection.recv(), object_hook=decode)
            except websockets.ConnectionClosed:
                return
            computing = time.monotonic()
            answer = self.infer(message)
            answer["server_timing"] = {"infer_ms": (time.monotonic() - computing) * 1e3}
            if before is not None:
                answer["server_timing"]["prev_total_ms"] = before * 1e3
            await connection.send(packer.pack(answer))
            before = time.monotonic() - begun


async def main(kind: str, port: int) -> None:
    torch.set_num_threads(1)
    server = Server(make_network(kind))
    serving = websockets.asyncio.server.serve(server.handle, "127.0.0.1", port, compression=None, max_size=None)
    async with serving as listening:
        print("listening", flush=True)
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
