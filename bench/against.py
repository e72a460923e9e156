"""Throughput of this tree beside another checkout's, in turns: has a change made an algorithm slower?

    git worktree add ../before COMMIT && make -C ../before .venv/core
    python -m bench.against ../before impala a3c …             all algorithms that both have when none is named

A machine of which others have a share moves by tens of per cent from minute to minute: both sides have many short
turns, and the median of the ratios of neighbouring turns is told with the interval that holds it in 90 of 100 cases.
Two figures: processor time of all processes for each step that was trained on, which moves least, and steps per second.
With --together both run at once and share all cores: what the machine does to one it does to the other, so that far
fewer turns tell them apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
from bench.peers import ROOT

from shoal.runs import registry

LOOK = 0.05  # seconds between two looks at the processes


class Turn(NamedTuple):
    rate: float  # environment steps per second
    cost: float  # seconds of processor time for each step that was trained on


class Look(NamedTuple):
    when: float
    processes: int
    used: float  # seconds of processor time, of all that are there


def look(command: psutil.Process) -> Look:
    used, count = 0.0, 0
    for process in [command, *command.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used, count = used + times.user + times.system, count + 1
    return Look(time.monotonic(), count, used)


def processors_in_use(looks: list[Look], seconds: float) -> float:
    """Processor seconds per second in the last `seconds` before the first process ended: what was measured last."""
    most = max(found.processes for found in looks)
    last = next(found for found in reversed(looks) if found.processes == most)
    first = next(found for found in looks if found.when >= last.when - seconds and found.processes == most)
    return (last.used - first.used) / (last.when - first.when)


def turn(tree: Path, algorithm: str, seconds: float) -> Turn:
    words = ["bench", "throughput", algorithm, "--seconds", str(seconds), "--no-limits", "--json"]
    command = [str(tree / ".venv" / "bin" / "shoal"), *words]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    looks = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                looks.append(look(process))
            except psutil.NoSuchProcess:
                break
            time.sleep(LOOK)
        assert running.stdout is not None
        printed = running.stdout.read()
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    found = json.loads(printed.strip().splitlines()[-1])
    return Turn(found["env_steps_per_second"], processors_in_use(looks, seconds) / found["trained_steps_per_second"])


def in_turn(trees: tuple[Path, Path], algorithm: str, seconds: float) -> list[Turn]:
    return [turn(tree, algorithm, seconds) for tree in trees]


def together(trees: tuple[Path, Path], algorithm: str, seconds: float) -> list[Turn]:
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda tree: turn(tree, algorithm, seconds), trees))


def interval(ratios: list[float], share: float = 0.9, draws: int = 2000) -> tuple[float, float]:
    """Of the median, by drawing again from what was seen."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(draws))
    cut = int(draws * (1 - share) / 2)
    return medians[cut], medians[-1 - cut]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="another checkout, with an environment of its own in .venv")
    parser.add_argument("algorithms", nargs="*")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn, after the warm-up")
    parser.add_argument("--together", action="store_true", help="both at once, in place of turns")
    options = parser.parse_args()
    measure = together if options.together else in_turn
    before = options.before.resolve()
    pages = before / "src" / "shoal" / "algorithms"
    for algorithm in options.algorithms or [name for name in registry.names() if (pages / f"{name}.py").exists()]:
        pairs = []
        for turn in range(options.rounds):
            order = (before, ROOT) if turn % 2 == 0 else (ROOT, before)
            found = dict(zip(order, measure(order, algorithm, options.seconds)))
            pairs.append((found[before], found[ROOT]))
        costs, rates = ([(getattr(old, name), getattr(new, name)) for old, new in pairs] for name in ("cost", "rate"))
        print(f"{algorithm:10} {line(costs, 1e6)} µs of processor time per trained step", flush=True)
        print(f"{'':10} {line(rates)} env steps/s ({options.rounds} rounds)", flush=True)


def line(pairs: Iterable[tuple[float, float]], unit: float = 1.0) -> str:
    pairs = list(pairs)
    then, now = (statistics.median(side) * unit for side in zip(*pairs))
    ratios = [new / old for old, new in pairs]
    low, high = interval(ratios)
    return f"{then:10,.1f} → {now:10,.1f}, ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
