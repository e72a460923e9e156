"""Updates per second of `iql` and `td3_bc` beside d3rlpy and a single file in CORL's style, in turns.

    python -m bench.offline_speed [--rounds 2] [--seconds 8] [--methods iql td3_bc]

All sides learn from the same 100,000 rows, as wide as HalfCheetah-v5's, in batches of 256 with networks of 256 × 256,
each with one thread and with two. d3rlpy is installed into an environment of its own below .bench. Shoal is the program
that `shoal train METHOD --data …` runs, without its evaluator (`shoal bench update`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench.offline_speed.single_file import columns
from bench.peers import environment
from bench.peers.running import adopting, run

HERE = Path(__file__).resolve().parent
START = 120.0  # seconds that a side may take to begin and to end
NAMES = {"shoal": "Shoal", "single_file": "single file", "d3rlpy": "d3rlpy"}


def write_dataset(folder: Path) -> Path:
    """The rows of the other sides as a dataset of Shoal's."""
    seen, action, reward, following, ended = (np.asarray(column) for column in columns())
    source, made = folder / "rows.npz", folder / "rows"
    nothing = np.zeros(len(ended), np.bool_)
    layout = {"observations": seen, "actions": action, "rewards": reward[:, 0], "next_observations": following}
    np.savez(source, **layout, terminals=nothing, timeouts=ended[:, 0] > 0)
    words = [sys.executable, "-m", "shoal", "data", "import", source, "--output", made]
    subprocess.run(words, check=True, capture_output=True)
    return made


def command(side: str, method: str, threads: int, seconds: float, data: Path) -> list[str]:
    if side == "shoal":
        words: list[Any] = [sys.executable, "-m", "shoal", "bench", "update", method, "--data", data, "--json"]
        return [str(word) for word in (*words, "--learner-threads", threads, "--seconds", seconds)]
    python = sys.executable if side == "single_file" else environment("d3rlpy")
    script = HERE / ("single_file.py" if side == "single_file" else "d3rlpy_side.py")
    return [str(word) for word in (python, script, method, "--threads", threads, "--seconds", seconds)]


def rate(found: dict[str, Any]) -> float:
    return float(
        found["updates_per_second"] if "updates_per_second" in found else found["program"]["updates_per_second"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--methods", nargs="+", choices=("iql", "td3_bc"), default=["iql", "td3_bc"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    environment("d3rlpy")  # before anything is measured
    with tempfile.TemporaryDirectory() as folder, adopting():
        data = write_dataset(Path(folder))
        for method in options.methods:
            turns = [(side, threads) for side in NAMES for threads in options.threads]
            found: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
            for _ in range(options.rounds):
                for side, threads in turns:
                    told = run(command(side, method, threads, options.seconds, data), START + 5 * options.seconds)
                    found[side, threads].append(rate(told))
            medians = {turn: statistics.median(rates) for turn, rates in found.items()}
            ours = max(rate for (side, _), rate in medians.items() if side == "shoal")
            print(f"\n| {method} | threads | updates/s, all turns | Shoal's better one |\n|---|---|---|---|")
            for (side, threads), rates in found.items():
                told_rates = ", ".join(f"{each:.1f}" for each in rates)
                print(f"| {NAMES[side]} | {threads} | {told_rates} | {ours / medians[side, threads]:.2f}x |")


if __name__ == "__main__":
    main()
