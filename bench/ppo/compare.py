"""Shoal's PPO beside Stable-Baselines3's on CartPole-v1, one after the other on the same machine, seed by seed.

    python -m bench.ppo.compare [--seeds 10]

Seconds of training until 10 greedy episodes reach 475 and 50 fresh ones confirm it. SB3 is installed from the package
index into an environment of its own below .bench; its settings are those of its own zoo, its evaluation is not counted.
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
    times: dict[str, list[float]] = {"shoal": [], "sb3": []}
    print("| seed | Shoal, s | steps/s | SB3, s | steps/s |\n|---|---|---|---|---|")
    for seed in range(1, options.seeds + 1):
        ours = last_line(*train, "--seed", seed, "--stop-seconds", LIMIT)
        theirs = last_line(peer, HERE / "sb3_side.py", seed, "--seconds", LIMIT)
        row = [f"{seed}"]
        for name, found in (("shoal", ours), ("sb3", theirs)):
            seconds = found["seconds_to_target"]
            times[name].append(LIMIT if seconds is None else seconds)
            row += [
                f"over {LIMIT:.0f}" if seconds is None else f"{seconds:.1f}",
                f"{found['env_steps_per_second']:,.0f}",
            ]
        print(f"| {' | '.join(row)} |", flush=True)
    ours_median, theirs_median = (statistics.median(times[name]) for name in ("shoal", "sb3"))
    print(
        f"| median | {ours_median:.1f} | | {theirs_median:.1f} | | SB3 needs {theirs_median / ours_median:.1f}x as long"
    )


if __name__ == "__main__":
    main()
