"""Every learning result that the pages of docs/algorithms state: the tasks, run seed by seed, and their curves.

    python -m bench.learning                       what there is
    python -m bench.learning ppo-cartpole ...      run these; curve and figures go to docs/curves

A seed has reached its target when the greedy evaluator has confirmed it on 50 fresh episodes within the time limit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from bench.peers import ROOT, last_line

SHOAL = [sys.executable, "-m", "shoal"]
CURVES = ROOT / "docs" / "curves"
HIDDEN = "shoal/CartPoleHidden-v0"


@dataclass(frozen=True)
class Task:
    algorithm: str
    env: str
    target: float
    seconds: float  # that a seed has, from when its nodes were started
    seeds: int
    options: str = ""


TASKS = {
    "impala-cartpole": Task("impala", "CartPole-v1", 475, 60, 10),
    "impala-learners": Task("impala", "CartPole-v1", 475, 60, 5, "--learners 2"),
    "impala-central": Task("impala", "CartPole-v1", 475, 60, 5, "--inference central"),
    "a3c-cartpole": Task("a3c", "CartPole-v1", 475, 90, 10),
    "ppo-cartpole": Task("ppo", "CartPole-v1", 475, 60, 10),
    "ppo-lunarlander": Task("ppo", "LunarLander-v3", 200, 300, 5),
    "ppo-pendulum": Task("ppo", "Pendulum-v1", -250, 180, 5),
    "ppo-halfcheetah": Task("ppo", "HalfCheetah-v5", 2000, 600, 3),
    "ppo-hidden": Task("ppo", HIDDEN, 400, 300, 5, "--lstm 64"),
    "appo-cartpole": Task("appo", "CartPole-v1", 475, 60, 10),
    "apex_dqn-cartpole": Task("apex_dqn", "CartPole-v1", 475, 120, 10),
    "apex_dqn-lunarlander": Task("apex_dqn", "LunarLander-v3", 200, 480, 5),
    "apex_dqn-quantiles-cartpole": Task("apex_dqn", "CartPole-v1", 475, 120, 10, "--quantiles 32"),
    "apex_dqn-quantiles-lunarlander": Task("apex_dqn", "LunarLander-v3", 200, 480, 5, "--quantiles 32"),
    "apex_dpg-pendulum": Task("apex_dpg", "Pendulum-v1", -200, 180, 10),
    "d4pg-categorical-pendulum": Task("d4pg", "Pendulum-v1", -200, 180, 10, "--critic categorical"),
    "d4pg-quantile-pendulum": Task("d4pg", "Pendulum-v1", -200, 180, 10, "--critic quantile"),
    "d4pg-halfcheetah": Task("d4pg", "HalfCheetah-v5", 2000, 1800, 3),
    "r2d2-hidden": Task("r2d2", HIDDEN, 400, 360, 5),
    "r2d2-recall": Task("r2d2", "shoal/Recall-v0", 0.95, 360, 5),
    "r2d2-central": Task("r2d2", HIDDEN, 400, 360, 3, "--inference central"),
}


def run(name: str, seeds: int | None) -> dict[str, Any]:
    """Train every seed, draw the curve, and return the figures."""
    task = TASKS[name]
    words = ["train", task.algorithm, "--env", task.env, "--stop-return", task.target, *task.options.split()]
    print(f"{name}: shoal {' '.join(map(str, words))} --stop-seconds {task.seconds:.0f}")
    folder = ROOT / "runs" / "learning" / name
    shutil.rmtree(folder, ignore_errors=True)
    rows = []
    for seed in range(1, (seeds or task.seeds) + 1):
        place = ["--seed", seed, "--stop-seconds", task.seconds, "--run-dir", folder / f"seed-{seed}", "--json"]
        found = last_line(*SHOAL, *words, *place)
        kept = ("seed", "reached", "eval_return", "seconds_to_target", "env_steps", "learner_steps")
        rows.append({name: found[name] for name in (*kept, "env_steps_per_second")})
        print(f"  {json.dumps(rows[-1])}", flush=True)
    curve = [*SHOAL, "plot", *sorted(folder.iterdir()), "--output", CURVES / f"{name}.png"]
    subprocess.run([str(word) for word in curve], check=True, stdout=subprocess.DEVNULL)
    times = [row["seconds_to_target"] if row["reached"] else float("inf") for row in rows]
    median = statistics.median(times)
    summary = {
        "command": f"shoal {' '.join(map(str, words))} --stop-seconds {task.seconds:.0f}",
        "reached": sum(row["reached"] for row in rows),
        "of": len(rows),
        "median_seconds": median if median < float("inf") else None,
        "runs": rows,
    }
    print(f"  {summary['reached']} of {len(rows)} seeds reached {task.target:g}, median {median:.1f} s", flush=True)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="of a task, or the beginning of several")
    parser.add_argument("--seeds", type=int, help="other than the task's own number")
    options = parser.parse_args()
    chosen = [name for name in TASKS if any(name.startswith(begin) for begin in options.names)]
    if not chosen:
        print("\n".join(f"{name:32} {task}" for name, task in TASKS.items()))
        return
    kept = CURVES / "figures.json"
    for name in chosen:
        figures = run(name, options.seeds)
        known = json.loads(kept.read_text()) if kept.exists() else {}
        kept.write_text(json.dumps(known | {name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
