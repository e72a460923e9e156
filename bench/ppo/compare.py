"""Shoal's PPO beside Stable-Baselines3's on CartPole-v1, one after the other on the same machine, seed by seed.

    python -m bench.ppo.compare [--seeds 10]

Seconds from the first step until 10 greedy episodes reach 475 and 50 fresh ones confirm it, asked every half second and
with the time that this takes on both sides; for SB3 also without it. SB3 is installed from the package index into an
environment of its own below .bench; its settings are those of its own zoo.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from bench.peers import environment, last_line

HERE = Path(__file__).resolve().parent
LIMIT = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    peer = environment("sb3")
    train = [sys.executable, "-m", "shoal", "train", "ppo", "--env", "CartPole-v1", "--stop-return", "475", "--json"]
    sides: dict[str, list[float]] = {"Shoal": [], "SB3": [], "SB3 without evaluation": []}
    print(f"| seed | {' | '.join(sides)} | steps/s |\n|---|---|---|---|---|")
    for seed in range(1, options.seeds + 1):
        ours = last_line(*train, "--seed", seed, "--stop-seconds", LIMIT)
        theirs = last_line(peer, HERE / "sb3_side.py", seed, "--seconds", LIMIT)
        row = ours["seconds_to_target"], theirs["seconds_to_target"], theirs["without_evaluation"]
        for times, seconds in zip(sides.values(), row, strict=True):
            times.append(LIMIT if seconds is None else seconds)
        told = " | ".join(f"{times[-1]:.1f}" for times in sides.values())
        print(
            f"| {seed} | {told} | {ours['env_steps_per_second']:,.0f}, {theirs['env_steps_per_second']:,.0f} |",
            flush=True,
        )
    medians = [statistics.median(times) for times in sides.values()]
    print(f"| median | {' | '.join(f'{median:.1f}' for median in medians)} | |")
    print(f"SB3 needs {medians[1] / medians[0]:.1f}x as long, {medians[2] / medians[0]:.1f}x without its evaluation")


if __name__ == "__main__":
    main()
