"""The work of `shoal bench replay` on cpprb, in process; run by compare.py in cpprb's own environment."""

from __future__ import annotations

import sys
from typing import Any

import cpprb
import numpy as np
from turns import rate, take_turns

# observation shape and dtype, capacity in items, items per insert, batch
WORKS = {
    "transitions": ((4,), np.float32, 1_000_000, 64 * 100, 512),
    "frame stacks": ((84, 84, 4), np.uint8, 40_000, 16 * 100, 256),
}


def rows_of(count: int, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    observation = np.random.default_rng(0).integers(0, 255, (count, *shape)).astype(dtype)
    return {
        "obs": observation,
        "next_obs": observation,
        "act": np.zeros(count, np.int32),
        "rew": np.ones(count, np.float32),
        "done": np.zeros(count, np.float32),
        "priorities": np.ones(count),
    }


def main(work: str) -> None:
    shape, dtype, capacity, count, batch = WORKS[work]
    observation = {"shape": shape, "dtype": dtype}
    columns = {"obs": observation, "next_obs": observation, "act": {"dtype": np.int32}, "rew": {}, "done": {}}
    buffer = cpprb.PrioritizedReplayBuffer(capacity, columns, alpha=0.6)
    rows = rows_of(count, shape, dtype)

    def insert() -> int:
        buffer.add(**rows)
        return count

    def sample() -> int:
        buffer.sample(batch, beta=0.4)
        return batch

    for _ in range(int(1.3 * capacity / count)):
        insert()
    take_turns({"insert": lambda: rate(insert), "sample": lambda: rate(sample)})


if __name__ == "__main__":
    main(sys.argv[1])
