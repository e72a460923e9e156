"""A policy behind Ray Serve, for comparison: one replica, `serve.batch`, raw bytes over HTTP, no Shoal.

python bench/serving/ray_form.py mlp|cnn PORT
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import ray
import torch
from networks import make_network
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

SHAPES = {"mlp": ((4,), np.float32), "cnn": ((4, 84, 84), np.uint8)}


@serve.deployment(num_replicas=1, max_ongoing_requests=512, ray_actor_options={"num_cpus": 0.5})
class Policy:
    def __init__(self, kind: str) -> None:
        torch.set_num_threads(1)
        self.network = make_network(kind)
        self.shape, self.dtype = SHAPES[kind]

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.0)
    async def act(self, observations: list[Any]) -> list[int]:
        with torch.inference_mode():
            return self.network(torch.from_numpy(np.stack(observations))).argmax(-1).tolist()  # type: ignore[no-any-return]

    async def __call__(self, request: Request) -> Response:
        observation = np.frombuffer(await request.body(), self.dtype).reshape(self.shape)
        return Response(np.int64(await self.act(observation)).tobytes())


def main(kind: str, port: int) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Policy.bind(kind), route_prefix="/")
    print("listening", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
