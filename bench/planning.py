"""How far `shoal plan` is from what runs make: configurations that its constants were fitted on, and others.

    python -m bench.planning --output planning.json      measure all of them, several minutes on a quiet machine
    python -m bench.planning --read planning.json        tell them again, with the constants as they are now

For each kind of program `shoal plan` measures its costs once; with these every number of actors is simulated, and then
run by `shoal bench throughput`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.peers import last_line

from shoal.planning.costs import BYTE_CPU, CALL_CPU, IDLE, TOGETHER, Costs, Layout
from shoal.planning.program import simulate

SLEEPING = "--env bench.sleeping:Sleeping --env-option seconds={} --vectorizer sync"
SMALL = "--envs-per-actor 1 --unroll 10 --batch 8 --queue 64"
PROGRAMS = {  # what runs, and the numbers of actors that are fitted or checked
    "impala, 20 ms": ("impala", f"{SLEEPING.format(0.02)} {SMALL}", (64,), (2, 16)),
    "impala, 5 ms": ("impala", f"{SLEEPING.format(0.005)} {SMALL}", (64,), (8, 32)),
    "impala central, 5 ms": ("impala", f"{SLEEPING.format(0.005)} {SMALL} --inference central", (), (24,)),
    "apex_dqn, 10 ms": (
        "apex_dqn",
        f"{SLEEPING.format(0.01)} --envs-per-actor 2 --batch 64 --learning-starts 200 --samples-per-insert 8",
        (),
        (16,),
    ),
    "ppo, 5 ms": ("ppo", f"{SLEEPING.format(0.005)} --envs-per-actor 2 --unroll 16", (), (12,)),
    "impala CartPole-v1": ("impala", "--env CartPole-v1 --vectorizer sync --envs-per-actor 16", (1,), (4,)),
}


def measure(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The costs of a kind of program, and its rates."""
    algorithm, options, fitted, checked = PROGRAMS[name]
    shoal = [sys.executable, "-m", "shoal"]
    plan = last_line(*shoal, "plan", algorithm, *options.split(), "--steps-per-second", "1", "--json")
    rates: dict[int, list[float]] = {actors: [] for actors in sorted({*fitted, *checked})}
    for _ in range(rounds):
        for actors, found in rates.items():
            words = [*options.split(), "--actors", actors, "--seconds", seconds, "--no-limits", "--json"]
            found.append(last_line(*shoal, "bench", "throughput", algorithm, *words)["env_steps_per_second"])
    return {"name": name, "cores": len(os.sched_getaffinity(0)), "costs": plan["costs"], "rates": rates}


def tell(found: list[dict[str, Any]]) -> None:
    constants = {"idle": IDLE, "together": TOGETHER, "call_cpu": CALL_CPU, "byte_cpu": BYTE_CPU}
    print("| program | actors | | measured | simulated | error |\n|---|---|---|---|---|---|")
    for row in found:
        costs = dataclasses.replace(Costs(**row["costs"]), **constants)
        _, _, fitted, _ = PROGRAMS[row["name"]]
        for actors, rates in row["rates"].items():
            layout = Layout(cores=row["cores"], network=1.25e9, actors=(int(actors),), servers=int(costs.central))
            rate, measured = simulate(costs, layout).rate, sorted(rates)[len(rates) // 2]
            kind = "fitted" if int(actors) in fitted else "checked"
            print(f"| {row['name']} | {actors} | {kind} | {measured:,.0f} | {rate:,.0f} | {rate / measured - 1:+.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run, after the warm-up")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where what was measured is kept")
    parser.add_argument("--read", type=Path, help="what was kept, in place of measuring")
    options = parser.parse_args()
    if options.read:
        tell(json.loads(options.read.read_text()))
        return
    found = []
    for name in options.programs:
        found.append(measure(name, options.seconds, options.rounds))
        tell(found[-1:])
        if options.output:
            options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
