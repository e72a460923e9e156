"""The work of `shoal bench replay` on Reverb; run by compare.py in Reverb's own environment.

Reverb writes step by step, so its insert rate compares a call per step with a call per block. It is read through
`TrajectoryDataset`, batched: its fastest way. The server runs in threads of this process, which spares it a process.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

WINDOW = 1.0
TABLE = "experience"
# observation shape and dtype, rows per item, rows from one item to the next, capacity in items, batch
WORKS = {
    "transitions": ((4,), np.float32, 2, 1, 50_000, 512),
    "frame stacks": ((84, 84), np.uint8, 5, 1, 20_000, 256),
    "sequences": ((84, 84), np.uint8, 80, 40, 500, 16),
}


def measure(shape: Any, dtype: Any, rows: int, period: int, capacity: int, batch: int, repeat: int) -> dict[str, float]:
    signature = {
        "observation": tf.TensorSpec([rows, *shape], dtype),
        "action": tf.TensorSpec([rows], np.int32),
        "reward": tf.TensorSpec([rows], np.float32),
    }
    server = reverb.Server(
        [
            reverb.Table(
                TABLE,
                sampler=reverb.selectors.Prioritized(0.6),
                remover=reverb.selectors.Fifo(),
                max_size=capacity,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=signature,
            )
        ]
    )
    address = f"localhost:{server.port}"
    writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=rows)
    step = {
        "observation": np.random.default_rng(0).integers(0, 255, shape).astype(dtype),
        "action": np.int32(1),
        "reward": np.float32(1.0),
    }
    steps = 0

    def insert_for(seconds: float) -> float:
        nonlocal steps
        items, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for _ in range(200):
                writer.append(step)
                steps += 1
                if steps >= rows and (steps - rows) % period == 0:
                    writer.create_item(TABLE, 1.0, {name: column[-rows:] for name, column in writer.history.items()})
                    items += 1
            writer.flush(block_until_num_items=100)
        writer.flush()
        return items / (time.perf_counter() - begun)

    insert = max(insert_for(WINDOW) for _ in range(repeat))
    filling = time.perf_counter()
    while reverb.Client(address).server_info()[TABLE].current_size < capacity and time.perf_counter() - filling < 20:
        insert_for(WINDOW)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, TABLE, max_in_flight_samples_per_worker=2 * batch, num_workers_per_iterator=2
    ).batch(batch)
    stream = iter(dataset)
    next(stream)
    sample = 0.0
    for _ in range(repeat):
        items, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < WINDOW:
            next(stream)
            items += batch
        sample = max(sample, items / spent)
    writer.close()
    return {"insert": insert, "sample": sample}


if __name__ == "__main__":
    print(json.dumps({name: measure(*work, repeat=int(sys.argv[1])) for name, work in WORKS.items()}))
