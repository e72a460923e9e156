"""From what size of network on central inference is faster than acting with a network of one's own.

    python -m bench.central [--actors 4] [--envs-per-actor 16] [--seconds 5] [--sizes 64 256 …]

IMPALA on CartPole-v1, the same config on both sides, for growing layers; the best of two runs each. With several actors
of few environments each a server's batches are larger than an actor's own, and weights are unpacked once instead of by
every actor; against that stands a call for every step.
"""

from __future__ import annotations

import argparse
import sys

from bench.peers import last_line

SIZES = (64, 256, 512, 1024, 1536, 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--envs-per-actor", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    shape = ["--actors", options.actors, "--envs-per-actor", options.envs_per_actor, "--batch", 64, "--unroll", 20]
    command = [sys.executable, "-m", "shoal", "bench", "throughput", "impala", "--env", "CartPole-v1", *shape]
    command += ["--seconds", options.seconds, "--repeat", 2, "--json"]
    print("| two layers of | local | central |\n|---|---|---|")
    for size in options.sizes:
        found = [
            last_line(*command, "--hidden", size, size, "--inference", inference)["runs"]
            for inference in ("local", "central")
        ]
        rates = [max(run["env_steps_per_second"] for run in runs) for runs in found]
        print(f"| {size} | {rates[0]:,.0f} | {rates[1]:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
