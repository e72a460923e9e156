"""Shoal beside RLlib, Sample Factory, Stable-Baselines3, TorchRL and single files, in turns on the same tasks.

    python -m bench.peers [--rounds 3] [--seconds 30] [--tasks pong cartpole …] [--only shoal sb3 …] [--output FOLDER]

Every side has the same environments in the same number, the same network and as many passes over the data
(bench/peers/tasks.py). Peers are installed from the package index into environments of their own below .bench. First
each side tries its settings of threads and processes for --trial seconds and keeps its fastest; then all of them train
for --seconds after a warm-up, round by round in turns. Writes peers.json and peers.png, prints the table for
docs/benchmarks.md; of tasks and methods that were not asked for it keeps what the file has. Takes more than an hour.

    python -m bench.peers --seconds 3 --rounds 1 --trial 0        does everything run? Its figures say nothing
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.peers import ROOT, environment, report
from bench.peers.running import Failed, adopting, run
from bench.peers.sides import NAMES, Side, sides
from bench.peers.tasks import METHODS, TASKS

START = 300.0  # seconds that a side may take to begin and to end


class Turns:
    """One side on one task: its setting and what it did in its turns."""

    def __init__(self, task: str, side: Side) -> None:
        self.task, self.side = task, side
        self.setting = next(iter(side.settings))
        self.trials: dict[str, float] = {}
        self.taken: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.versions: dict[str, str] = {}

    def choose(self, seconds: float) -> None:
        """The fastest of its settings."""
        for setting in self.side.settings:
            found = self.turn(setting, seconds)
            if found is not None:
                self.trials[setting] = found["env_steps_per_second"]
        if self.trials:
            self.setting = max(self.trials, key=lambda setting: self.trials[setting])

    def take(self, seconds: float) -> None:
        found = self.turn(self.setting, seconds)
        if found is not None:
            self.taken.append(found)

    def turn(self, setting: str, seconds: float) -> dict[str, Any] | None:
        try:
            # An iteration of PPO may be long: a turn ends with one.
            found = run(self.side.command(self.task, setting, seconds), limit=START + 3 * seconds)
            told = report.reading(self.task, self.side.method, found)
            if not told["env_steps_per_second"]:
                raise Failed("too few updates to measure: give more --seconds")
        except Failed as failed:
            self.errors.append(f"{setting}: {failed}")
            print(f"{self.task}: {self.side.label} ({setting}) failed: {failed}", file=sys.stderr, flush=True)
            return None
        self.versions = found.get("versions", self.versions)
        print(
            f"{self.task}: {self.side.label} ({setting}) {told['env_steps_per_second']:,.0f} steps/s, "
            f"{told['passes']:.2f} passes",
            file=sys.stderr,
            flush=True,
        )
        return told

    def row(self) -> dict[str, Any]:
        who = {"label": self.side.label, "peer": self.side.peer, "method": self.side.method, "setting": self.setting}
        return report.row(who, self.taken) | {"trials": self.trials, "errors": self.errors}


def results(everybody: list[Turns], options: argparse.Namespace) -> dict[str, Any]:
    """By task and method: a run of some of them leaves what is known of the others."""
    found: dict[str, Any] = {}
    for turns in everybody:
        part = found.setdefault(turns.task, {}).setdefault(
            turns.side.method,
            {
                "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
                "machine": report.machine(),
                "versions": {},
                "rounds": options.rounds,
                "seconds": options.seconds,
                "rows": [],
            },
        )
        part["rows"].append(turns.row())
        if turns.side.peer == "shoal":
            names = ("torch", "gymnasium", "ale-py", "numpy")
            part["versions"][NAMES["shoal"]] = {"commit": commit()} | {name: metadata.version(name) for name in names}
        elif turns.versions:
            part["versions"][NAMES[turns.side.peer]] = turns.versions
    return found


def commit() -> str:
    """Of this tree, with a + where it has been changed since."""
    done = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each turn, after the warm-up")
    parser.add_argument("--trial", type=float, default=8.0, help="seconds for each setting; 0: the first is taken")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="these sides")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "curves", help="a folder")
    options = parser.parse_args()
    everybody = [
        Turns(task, side)
        for task in options.tasks
        for side in sides(task)
        if side.peer in options.only and side.method in options.methods
    ]
    for peer in dict.fromkeys(turns.side.peer.removesuffix("_native") for turns in everybody):
        if peer != "shoal":
            environment(peer)  # before anything is measured
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "peers.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    with adopting():
        for turns in everybody if options.trial else []:
            turns.choose(options.trial)
        for number in range(options.rounds):
            for turns in everybody if number % 2 == 0 else reversed(everybody):
                turns.take(options.seconds)
            found = report.merged(known, results(everybody, options))
            kept.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    report.draw(found, options.output / "peers.png")
    print(report.heading(found), report.table(found), *report.losses(found), sep="\n\n")


if __name__ == "__main__":
    main()
