"""A simulator of the user's that computes for about a millisecond a step: how near does an actor come to its own rate?

    python -m bench.computing [--seconds 8] [--rounds 3]

In turns: the environment alone in a loop of Python, and an actor of IMPALA with eight of them (`--vectorizer sync`),
while learner and services have the other core. What is missing is what acting, recording and sending cost, and what
two cores that are one core's threads, or a machine that is shared with others, take from each other. To tell these
apart, the environments in the actor note how long their own steps took: the share that is left when the machine is as
it is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench.peers import last_line
from bench.sleeping import OPTIONS, Sleeping

WORK = 28_000  # additions, about a millisecond


class Computing(Sleeping):
    """Every step adds numbers in Python, always as many; episodes of 100 steps, each a line in `ledger` with the
    seconds that its steps took."""

    def __init__(self, additions: int = WORK, ledger: str = "") -> None:
        super().__init__(0.0)
        self._additions, self._ledger, self._taken = additions, ledger, 0.0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        begin, total = time.perf_counter(), 0
        for number in range(self._additions):
            total += number
        outcome = super().step(action)
        self._taken += time.perf_counter() - begin
        if outcome[3] and self._ledger:
            with open(self._ledger, "a") as file:
                print(self._taken, file=file)
            self._taken = 0.0
        return outcome


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


def acting(seconds: float) -> tuple[float, float]:
    """Steps per second of an actor, and of its environments while they were stepping."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        task = ["--env", "bench.computing:Computing", "--env-option", f"ledger={ledger}", "--actors", 1]
        command = [sys.executable, "-m", "shoal", "bench", "throughput", "impala", *task, *OPTIONS.split()]
        rate = float(last_line(*command, "--envs-per-actor", 8, "--seconds", seconds)["env_steps_per_second"])
        episodes = [float(line) for line in ledger.read_text().split()]
    return rate, 100 / statistics.mean(episodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn, after the warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [(alone(options.seconds), *acting(options.seconds)) for _ in range(options.rounds)]
    for bare, rate, inside in rounds:
        shares = f"{rate / bare:.1%} of it, {rate / inside:.1%} of {inside:,.0f}, which its environments had meanwhile"
        print(f"alone {bare:,.0f} steps/s; as an actor {rate:,.0f}: {shares}")
    for name, share in (("alone", 0), ("meanwhile", 2)):
        print(f"median, of {name}: {statistics.median(turn[1] / turn[share] for turn in rounds):.1%}")


if __name__ == "__main__":
    main()
