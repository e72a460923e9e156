"""Shoal's replay service beside Reverb and cpprb, one after the other on the same machine.

    python -m bench.replay.compare [--rounds 3] [--repeat 3] [--output table.json]

Reverb and cpprb are installed from the package index into environments of their own below .bench, since their
dependencies conflict with Shoal's. Each is driven with the same items and batch sizes, in turns over several rounds (a
shared machine has good and bad minutes), and its best window counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.peers import environment, last_line

HERE = Path(__file__).resolve().parent


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest figure of all rounds, part by part."""
    first = rounds[0]
    if not isinstance(first, dict):
        return max(rounds)
    return {name: best([found[name] for found in rounds]) for name in first if not isinstance(first[name], (str, list))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    commands = {name: [environment(name), HERE / f"{name}_side.py", options.repeat] for name in ("reverb", "cpprb")}
    shoal = [sys.executable, "-m", "shoal", "bench", "replay", "--quick", "--json", "--repeat", options.repeat]
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in (*commands, "shoal")}
    for _ in range(options.rounds):
        for name, command in {**commands, "shoal": shoal}.items():
            seen[name].append(last_line(*command))
    found = {name: best(rounds) for name, rounds in seen.items()}
    print("| work | | Shoal served | Reverb | ratio | Shoal in process | cpprb | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for work, reverb in found["reverb"].items():
        for kind in ("sample", "insert"):
            served, inside = (found["shoal"][place][work][kind] for place in ("served", "in process"))
            cpprb = found["cpprb"].get(work, {}).get(kind)
            beside = f"{cpprb:,.0f} | {inside / cpprb:.2f}x" if cpprb else "– | –"
            against = f"{reverb[kind]:,.0f} | {served / reverb[kind]:.1f}x"
            print(f"| {work} | {kind} | {served:,.0f} | {against} | {inside:,.0f} | {beside} |")
    if options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
