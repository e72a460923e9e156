"""A simulator of the user's that computes for about a millisecond a step: how near does an actor come to its own rate?

    python -m bench.computing [--seconds 8] [--rounds 3]

In turns: the environment alone in a loop of Python, and an actor of IMPALA with eight of them (`--vectorizer sync`),
while learner and services have the other core. What is missing is what acting, recording and sending cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np
from bench.peers import last_line
from bench.sleeping import OPTIONS, Sleeping

WORK = 28_000  # additions, about a millisecond


class Computing(Sleeping):
    """Every step adds numbers in Python, always as many; episodes of 100 steps."""

    def __init__(self, additions: int = WORK) -> None:
        super().__init__(0.0)
        self._additions = additions

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        total = 0
        for number in range(self._additions):
            total += number
        return super().step(action)


def alone(seconds: float) -> float:
    """Steps per second of the environment by itself, with its resets."""
    env = Computing()
    env.reset(seed=0)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        *_, terminated, truncated, _ = env.step(0)
        steps += 1
        if terminated or truncated:
            env.reset()
    return steps / (time.perf_counter() - begin)


def acting(seconds: float) -> float:
    task = ["--env", "bench.computing:Computing", "--actors", 1, *OPTIONS.split(), "--envs-per-actor", 8]
    command = [sys.executable, "-m", "shoal", "bench", "throughput", "impala", *task, "--seconds", seconds]
    return float(last_line(*command)["env_steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn, after the warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pairs = [(alone(options.seconds), acting(options.seconds)) for _ in range(options.rounds)]
    for bare, rate in pairs:
        print(f"alone {bare:,.0f} steps/s, as an actor {rate:,.0f}: {rate / bare:.1%}")
    print(f"median {statistics.median(rate / bare for bare, rate in pairs):.1%}")


if __name__ == "__main__":
    main()
