"""The work of `shoal bench replay` on Reverb; run by compare.py in Reverb's own environment.

    reverb_side.py WORK served | WORK "in process"

Reverb writes step by step, so its insert rate compares a call per step with a call per block. It is read through
`TrajectoryDataset`, batched: its fastest way. Where server and reader are in one process it does without its sockets.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import reverb
import tensorflow as tf
from turns import rate, take_turns

TABLE = "experience"
# observation shape and dtype, rows per item, rows from one item to the next, capacity in items, batch
WORKS = {
    "transitions": ((4,), np.float32, 2, 1, 1_000_000, 512),
    "frame stacks": ((84, 84), np.uint8, 5, 1, 40_000, 256),
    "sequences": ((84, 84), np.uint8, 80, 40, 1_000, 16),
}


def start_server(work: str) -> reverb.Server:
    shape, dtype, rows, _, capacity, _ = WORKS[work]
    signature = {
        "observation": tf.TensorSpec([rows, *shape], dtype),
        "action": tf.TensorSpec([rows], np.int32),
        "reward": tf.TensorSpec([rows], np.float32),
    }
    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=capacity,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    return reverb.Server([table])


def drive(work: str, port: int) -> None:
    shape, dtype, rows, period, capacity, batch = WORKS[work]
    client = reverb.Client(f"localhost:{port}")
    writer = client.trajectory_writer(num_keep_alive_refs=rows)
    step = {
        "observation": np.random.default_rng(0).integers(0, 255, shape).astype(dtype),
        "action": np.int32(1),
        "reward": np.float32(1.0),
    }
    steps = 0

    def insert() -> int:
        nonlocal steps
        items = 0
        for _ in range(200):
            writer.append(step)
            steps += 1
            if steps >= rows and (steps - rows) % period == 0:
                writer.create_item(TABLE, 1.0, {name: column[-rows:] for name, column in writer.history.items()})
                items += 1
        writer.flush(block_until_num_items=100)
        return items

    def insert_window() -> float:
        found = rate(insert)
        writer.flush()
        return found

    dataset = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{port}", TABLE, max_in_flight_samples_per_worker=2 * batch, num_workers_per_iterator=2
    ).batch(batch)

    def sample_window() -> float:
        stream = iter(dataset)  # a new one: it fetches ahead without end while others are measured

        def sample() -> int:
            next(stream)
            return batch

        rate(sample)
        return rate(sample)

    while client.server_info()[TABLE].current_size < capacity:  # two minutes for a million
        insert_window()
    take_turns({"insert": insert_window, "sample": sample_window})


def main(work: str, place: str) -> None:
    if place == "in process":
        server = start_server(work)
        drive(work, server.port)
    elif place == "server":
        server = start_server(work)
        print(server.port, flush=True)
        sys.stdin.read()  # until the driver is gone
    else:
        command = [sys.executable, __file__, work, "server"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            drive(work, int(process.stdout.readline()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
