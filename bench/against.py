"""Throughput of this tree beside another checkout's, in turns: has a change made an algorithm slower?

    git worktree add ../before COMMIT && make -C ../before .venv/core
    python -m bench.against ../before impala a3c …             all algorithms that both have when none is named

A machine of which others have a share moves by tens of per cent from minute to minute: both sides have many short
turns, and the median of the ratios of neighbouring turns is told with the interval that holds it in 90 of 100 cases.
With --together both run at once and share all cores: what the machine does to one it does to the other, so that far
fewer turns tell them apart.
"""

from __future__ import annotations

import argparse
import random
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.peers import ROOT, last_line

from shoal.runs import registry


def rate(tree: Path, algorithm: str, seconds: float) -> float:
    command = [tree / ".venv" / "bin" / "shoal", "bench", "throughput", algorithm, "--seconds", seconds, "--json"]
    flags = [] if tree != ROOT else ["--no-limits"]
    return float(last_line(*command, *flags)["env_steps_per_second"])


def in_turn(trees: tuple[Path, Path], algorithm: str, seconds: float) -> list[float]:
    return [rate(tree, algorithm, seconds) for tree in trees]


def together(trees: tuple[Path, Path], algorithm: str, seconds: float) -> list[float]:
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda tree: rate(tree, algorithm, seconds), trees))


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
        then, now = (statistics.median(side) for side in zip(*pairs))
        ratios = [new / old for old, new in pairs]
        low, high = interval(ratios)
        print(
            f"{algorithm:10} {then:12,.0f} → {now:12,.0f} env steps/s, "
            f"ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}, {options.rounds} rounds)",
            flush=True,
        )


if __name__ == "__main__":
    main()
