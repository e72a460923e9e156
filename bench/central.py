"""When central inference is faster than acting with a network of one's own: by the network's size, or by actors.

    python -m bench.central [--actors 4] [--envs-per-actor 16] [--seconds 5] [--sizes 64 256 …]
    python -m bench.central --env PongNoFrameskip-v4 --actors 1 2 4 --seconds 20

IMPALA, the same config on both sides, in turns, the best of two runs each. On CartPole-v1 for growing layers; on any
other environment with its preset's network, for each number of actors. With several actors of few environments each a
server's batches are larger than an actor's own, and weights are unpacked once instead of by every actor; against that
stands a call for every step.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench.peers import last_line

SIZES = (64, 256, 512, 1024, 1536, 2048)
REPEAT = 2


def compare(command: list[Any]) -> str:
    """Steps per second of both kinds, as cells of a table."""
    best: dict[str, float] = {}
    for _ in range(REPEAT):
        for inference in ("local", "central"):
            found = last_line(*command, "--inference", inference)["env_steps_per_second"]
            best[inference] = max(found, best.get(inference, 0.0))
    return f"{best['local']:,.0f} | {best['central']:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--actors", type=int, nargs="+", default=[4])
    parser.add_argument("--envs-per-actor", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of both layers, on CartPole-v1")
    options = parser.parse_args()
    command = [sys.executable, "-m", "shoal", "bench", "throughput", "impala", "--env", options.env, "--no-limits"]
    command += ["--envs-per-actor", options.envs_per_actor, "--seconds", options.seconds, "--json"]
    if options.env == "CartPole-v1":
        command += ["--batch", 64, "--unroll", 20]
        rows = {
            f"two layers of {size}, {actors} actors": ["--hidden", size, size, "--actors", actors]
            for size in options.sizes
            for actors in options.actors
        }
    else:
        rows = {f"{actors} × {options.envs_per_actor}": ["--actors", actors] for actors in options.actors}
    print(f"| {options.env} | local | central |\n|---|---|---|")
    for name, words in rows.items():
        print(f"| {name} | {compare([*command, *words])} |", flush=True)


if __name__ == "__main__":
    main()
