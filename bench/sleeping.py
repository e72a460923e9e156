"""Many actors whose simulators mostly wait: how near do they come to as many times the rate of one?

    python -m bench.sleeping                       1, 8, 32 and 64 actors of one environment that sleeps 20 ms a step

What sleeps needs no core, so that what is missing to the linear rate is what acting, sending, learning and supervision
of so many processes cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from bench.peers import last_line
from gymnasium import spaces

OPTIONS = "--envs-per-actor 1 --vectorizer sync --unroll 10 --batch 8 --queue 64 --no-limits --json"


class Sleeping(gymnasium.Env[np.ndarray, int]):
    """Every step takes `seconds` in which nothing is computed; episodes of 100 steps."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float = 0.02) -> None:
        self._seconds, self._steps = seconds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._steps += 1
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), float(action), False, self._steps == 100, {}


def rate(actors: int, sleep: float, seconds: float) -> float:
    task = ["--env", "bench.sleeping:Sleeping", "--env-option", f"seconds={sleep}", "--actors", actors]
    command = [sys.executable, "-m", "shoal", "bench", "throughput", "impala", *task, "--seconds", seconds]
    return float(last_line(*command, *OPTIONS.split())["env_steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--sleep", type=float, default=0.02, help="seconds a step takes")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn, after the warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[int, list[float]] = {actors: [] for actors in sorted({1, *options.actors})}
    for _ in range(options.rounds):
        for actors, rates in found.items():
            rates.append(rate(actors, options.sleep, options.seconds))
    alone = statistics.median(found[1])
    for actors, rates in found.items():
        median = statistics.median(rates)
        print(f"{actors:3} actors {median:8,.1f} env steps/s, {median / (alone * actors):.1%} of linear")


if __name__ == "__main__":
    main()
