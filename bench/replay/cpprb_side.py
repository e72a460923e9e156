"""The work of `shoal bench replay` on cpprb, in process; run by compare.py in cpprb's own environment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import cpprb
import numpy as np

WINDOW = 0.5


def rate(count: int, call: Callable[[], Any], repeat: int) -> float:
    """Items per second, the best of several windows."""
    found = 0.0
    for _ in range(repeat):
        done, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < WINDOW:
            call()
            done += count
        found = max(found, done / spent)
    return found


def measure(buffer: Any, rows: dict[str, Any], capacity: int, batch: int, repeat: int) -> dict[str, float]:
    count = len(rows["rew"])
    for _ in range(int(1.3 * capacity / count)):
        buffer.add(**rows)
    return {
        "insert": rate(count, lambda: buffer.add(**rows), repeat),
        "sample": rate(batch, lambda: buffer.sample(batch, beta=0.4), repeat),
    }


def rows_of(count: int, shape: tuple[int, ...], dtype: Any, follow: bool) -> dict[str, Any]:
    random = np.random.default_rng(0)
    observation = random.integers(0, 255, (count, *shape)).astype(dtype)
    rows = {
        "obs": observation,
        "act": np.zeros(count, np.int32),
        "rew": np.ones(count, np.float32),
        "done": np.zeros(count, np.float32),
        "priorities": np.ones(count),
    }
    if follow:
        rows["next_obs"] = observation
    return rows


def main(repeat: int) -> None:
    small = {"act": {"dtype": np.int32}, "rew": {}, "done": {}}
    transitions = cpprb.PrioritizedReplayBuffer(
        1_000_000, {"obs": {"shape": 4}, "next_obs": {"shape": 4}, **small}, alpha=0.6
    )
    frames = {"shape": (84, 84, 4), "dtype": np.uint8}
    stacks = cpprb.PrioritizedReplayBuffer(40_000, {"obs": frames, "next_obs": frames, **small}, alpha=0.6)
    report = {
        "transitions": measure(transitions, rows_of(64 * 100, (4,), np.float32, True), 1_000_000, 512, repeat),
        "frame stacks": measure(stacks, rows_of(16 * 100, (84, 84, 4), np.uint8, True), 40_000, 256, repeat),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]))
