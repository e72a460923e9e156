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
from pathlib import Path
from typing import Any

from bench.peers import ROOT, last_line

SHOAL = [sys.executable, "-m", "shoal"]
CURVES = ROOT / "docs" / "curves"
HIDDEN = "shoal/CartPoleHidden-v0"
CATCH = "shoal/Catch-v0"  # on pixels
MEMORY = "shoal/CatchMemory-v0"  # where the ball is seen once
CONTINUOUS = "LunarLander-v3", 200, 300, 2, 3, "--env-option continuous=True"


@dataclass(frozen=True)
class Task:
    algorithm: str
    env: str
    target: float
    seconds: float  # that a seed has, from when its nodes were started
    least: int  # seeds that must reach the target
    seeds: int
    options: str = ""
    median: float = float("inf")  # seconds that the median may take

    @property
    def words(self) -> list[str]:
        """The command that trains one seed."""
        goal = ["--stop-return", f"{self.target:g}", "--stop-seconds", f"{self.seconds:g}"]
        return ["train", self.algorithm, "--env", self.env, *goal, *self.options.split()]


TASKS = {
    "impala-cartpole": Task("impala", "CartPole-v1", 475, 60, 9, 10, median=5),
    "impala-learners": Task("impala", "CartPole-v1", 475, 60, 4, 5, "--learners 2"),
    "impala-central": Task("impala", "CartPole-v1", 475, 60, 4, 5, "--inference central"),
    "impala-pendulum": Task("impala", "Pendulum-v1", -250, 300, 4, 5),
    "a3c-pendulum": Task("a3c", "Pendulum-v1", -250, 300, 4, 5),
    "a3c-cartpole": Task("a3c", "CartPole-v1", 475, 90, 9, 10, median=40),
    "ppo-cartpole": Task("ppo", "CartPole-v1", 475, 60, 10, 10),
    "ppo-learners": Task("ppo", "CartPole-v1", 475, 60, 4, 5, "--learners 2"),
    "ppo-lunarlander": Task("ppo", "LunarLander-v3", 200, 300, 4, 5),
    "ppo-pendulum": Task("ppo", "Pendulum-v1", -250, 180, 4, 5),
    "ppo-halfcheetah": Task("ppo", "HalfCheetah-v5", 3000, 600, 2, 3),
    "ppo-hidden": Task("ppo", HIDDEN, 400, 300, 4, 5, "--lstm 64"),
    "appo-cartpole": Task("appo", "CartPole-v1", 475, 60, 9, 10, median=15),
    "apex_dqn-cartpole": Task("apex_dqn", "CartPole-v1", 475, 120, 9, 10, median=40),
    "apex_dqn-lunarlander": Task("apex_dqn", "LunarLander-v3", 200, 480, 4, 5),
    "apex_dqn-quantiles-cartpole": Task("apex_dqn", "CartPole-v1", 475, 120, 9, 10, "--quantiles 32", 40),
    "apex_dqn-quantiles-lunarlander": Task("apex_dqn", "LunarLander-v3", 200, 480, 4, 5, "--quantiles 32"),
    "apex_dpg-pendulum": Task("apex_dpg", "Pendulum-v1", -200, 180, 9, 10, median=60),
    "d4pg-categorical-pendulum": Task("d4pg", "Pendulum-v1", -200, 180, 9, 10, "--critic categorical", 60),
    "d4pg-quantile-pendulum": Task("d4pg", "Pendulum-v1", -200, 180, 9, 10, "--critic quantile", 60),
    "d4pg-halfcheetah": Task("d4pg", "HalfCheetah-v5", 2000, 1800, 2, 3),
    "sac-pendulum": Task("sac", "Pendulum-v1", -200, 180, 9, 10, median=30),
    "sac-halfcheetah": Task("sac", "HalfCheetah-v5", 3000, 600, 2, 3),
    "td3-pendulum": Task("td3", "Pendulum-v1", -200, 180, 9, 10, median=30),
    "td3-halfcheetah": Task("td3", "HalfCheetah-v5", 3000, 600, 2, 3),
    "r2d2-hidden": Task("r2d2", HIDDEN, 400, 360, 4, 5),
    "r2d2-recall": Task("r2d2", "shoal/Recall-v0", 0.95, 360, 4, 5),
    "impala-catch": Task("impala", CATCH, 0.9, 120, 3, 3),
    "ppo-catch": Task("ppo", CATCH, 0.9, 120, 3, 3),
    "apex_dqn-catch": Task("apex_dqn", CATCH, 0.9, 120, 3, 3),
    "apex_dqn-quantiles-catch": Task("apex_dqn", CATCH, 0.9, 120, 3, 3, "--quantiles 32"),
    "r2d2-catch": Task("r2d2", CATCH, 0.9, 120, 3, 3),
    "r2d2-catch-memory": Task("r2d2", MEMORY, 0.9, 600, 2, 3),
    "impala-catch-memory": Task("impala", MEMORY, 0.9, 600, 2, 3, "--lstm 128"),
    "impala-pong": Task("impala", "PongNoFrameskip-v4", 18, 4500, 1, 1, "--eval-every 60"),
    "impala-breakout": Task("impala", "BreakoutNoFrameskip-v4", 30, 4500, 1, 1, "--eval-every 60"),
    "apex_dqn-pong": Task("apex_dqn", "PongNoFrameskip-v4", -10, 4500, 1, 1, "--eval-every 240"),
    "appo-pong": Task("appo", "PongNoFrameskip-v4", 15, 4500, 1, 1, "--eval-every 180"),
    "ppo-hopper": Task("ppo", "Hopper-v5", 1500, 600, 2, 3),
    "ppo-walker2d": Task("ppo", "Walker2d-v5", 1500, 600, 2, 3),
    "ppo-lunarlander-continuous": Task("ppo", *CONTINUOUS[:-1], f"{CONTINUOUS[-1]} --gamma 0.999 --lambda 0.98"),
    "d4pg-lunarlander-continuous": Task("d4pg", *CONTINUOUS),
    "apex_dpg-lunarlander-continuous": Task("apex_dpg", *CONTINUOUS),
    "r2d2-central": Task("r2d2", HIDDEN, 400, 360, 2, 3, "--inference central"),
}


def train(name: str, seeds: int | None, folder: Path) -> dict[str, Any]:
    """The figures of a task; its runs go to `folder`."""
    task = TASKS[name]
    print(f"{name}: shoal {' '.join(task.words)}")
    rows = []
    for seed in range(1, (seeds or task.seeds) + 1):
        found = last_line(*SHOAL, *task.words, "--seed", seed, "--run-dir", folder / f"seed-{seed}", "--json")
        kept = ("seed", "reached", "eval_return", "seconds_to_target", "env_steps", "learner_steps")
        rows.append({name: found[name] for name in (*kept, "env_steps_per_second")})
        print(f"  {json.dumps(rows[-1])}", flush=True)
    median = statistics.median(row["seconds_to_target"] if row["reached"] else float("inf") for row in rows)
    reached = sum(row["reached"] for row in rows)
    print(f"  {reached} of {len(rows)} seeds reached {task.target:g}, median {median:.1f} s", flush=True)
    return {
        "command": f"shoal {' '.join(task.words)}",
        "reached": reached,
        "of": len(rows),
        "median_seconds": median if median < float("inf") else None,
        "runs": rows,
    }


def draw(name: str, folder: Path) -> None:
    command = [*SHOAL, "plot", *sorted(folder.iterdir()), "--output", CURVES / f"{name}.png"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="of a task, or the beginning of several")
    parser.add_argument("--seeds", type=int, help="other than the task's own number")
    options = parser.parse_args()
    begins = [begin for begin in options.names if begin not in TASKS]
    chosen = [name for name in TASKS if name in options.names or any(name.startswith(begin) for begin in begins)]
    if not chosen:
        print("\n".join(f"{name:32} {task}" for name, task in TASKS.items()))
        return
    kept = CURVES / "figures.json"
    for name in chosen:
        folder = ROOT / "runs" / "learning" / name
        shutil.rmtree(folder, ignore_errors=True)
        figures = train(name, options.seeds, folder)
        draw(name, folder)
        known = json.loads(kept.read_text()) if kept.exists() else {}
        kept.write_text(json.dumps(known | {name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
