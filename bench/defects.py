"""What the parts of the replay family are worth: each algorithm whole, and with one part taken out.

    python -m bench.defects                        what there is
    python -m bench.defects apex_dqn r2d2 ...      run these; the figures go to docs/curves/defects.json

Two seeds each, with the task's own settings but for the defect; a seed that has not arrived when its time is over
counts with the return that it had then.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench.learning import CURVES, HIDDEN, SHOAL
from bench.peers import ROOT, last_line

from shoal.replay import Pattern, n_step, sequence
from shoal.replay.patterns import Viewed


class EndsUnseen:
    """The rows of a batch, in which no episode ever terminates."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def take(self, name: str, addresses: Any) -> Any:
        found = self._rows.take(name, addresses)
        return np.zeros_like(found) if name == "terminated" else found


@dataclass(frozen=True)
class UnmaskedView:
    whole: Any

    @property
    def timed(self) -> bool:
        return bool(self.whole.timed)

    @property
    def needs(self) -> Any:
        return self.whole.needs

    def gather(self, rows: Any, layout: Any) -> Any:
        return self.whole.gather(EndsUnseen(rows), layout)


def unmasked(pattern: Pattern) -> Pattern:
    """The same items, with returns bootstrapped from the final observation of a terminated episode too."""
    return Viewed(pattern, UnmaskedView(pattern.view))


def transitions(cfg: Any) -> Pattern:
    return unmasked(n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip))


def sequences(cfg: Any) -> Pattern:
    return unmasked(sequence(cfg.length, period=cfg.period, burn_in=cfg.burn_in, end="shift"))


NO_PRIORITIES = "--priority-exponent 0 --importance-exponent 0"
R2D2 = {
    "burn-in off": "--burn-in 0",
    "ladder off": "--ladder-exponent 0",
    "priorities off": NO_PRIORITIES,
    "n-step mask off": "--pattern bench.defects:sequences",
}


@dataclass(frozen=True)
class Comparison:
    algorithm: str
    env: str
    target: float
    seconds: float
    defects: Mapping[str, str]  # what is off, and the options that take it out


COMPARISONS = {
    "apex_dqn-cartpole": Comparison(
        "apex_dqn",
        "CartPole-v1",
        475,
        60,
        {
            "ladder off": "--ladder-exponent 0",
            "priorities off": NO_PRIORITIES,
            "n-step mask off": "--pattern bench.defects:transitions",
        },
    ),
    "apex_dpg-pendulum": Comparison(
        "apex_dpg",
        "Pendulum-v1",
        -200,
        60,
        {"ladder off": "--noise-smallest 0.8", "priorities off": NO_PRIORITIES, "n-step off": "--n 1"},
    ),
    "d4pg-pendulum": Comparison(
        "d4pg",
        "Pendulum-v1",
        -200,
        60,
        {"priorities off": "--replay uniform", "n-step off": "--n 1"},
    ),
    "r2d2-hidden": Comparison("r2d2", HIDDEN, 400, 120, R2D2),
    "r2d2-recall": Comparison("r2d2", "shoal/Recall-v0", 0.95, 90, R2D2),
}


def run(name: str, seeds: int) -> dict[str, Any]:
    work, found = COMPARISONS[name], {}
    goal = ["--env", work.env, "--stop-return", f"{work.target:g}", "--stop-seconds", f"{work.seconds:g}"]
    for part, options in {"whole": "", **work.defects}.items():
        command = [*SHOAL, "train", work.algorithm, *goal, *options.split(), "--json"]
        runs = []
        for seed in range(1, seeds + 1):
            folder = ROOT / "runs" / "defects" / f"{name} {part} {seed}"
            shutil.rmtree(folder, ignore_errors=True)
            row = last_line(*command, "--seed", seed, "--run-dir", folder)
            runs.append({key: row[key] for key in ("seed", "reached", "eval_return", "seconds_to_target")})
        found[part] = {"options": options, "runs": runs}
        words = [
            f"{row['seconds_to_target']:.1f} s" if row["reached"] else f"at {row['eval_return']:.4g}" for row in runs
        ]
        print(f"| {name} | {part} | {', '.join(words)} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="of a comparison, or the beginning of several")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    chosen = [name for name in COMPARISONS if any(name.startswith(begin) for begin in options.names)]
    if not chosen:
        print("\n".join(f"{name:20} {work}" for name, work in COMPARISONS.items()))
    kept = CURVES / "defects.json"
    for name in chosen:
        figures = run(name, options.seeds)
        known = json.loads(kept.read_text()) if kept.exists() else {}
        kept.write_text(json.dumps(known | {name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
