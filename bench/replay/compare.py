"""Shoal's replay service beside Reverb and cpprb, one after the other on the same machine.

    python -m bench.replay.compare [--repeat 5] [--output table.json]

Reverb and cpprb are installed from the package index into environments of their own below .bench, since their
dependencies conflict with Shoal's. Each is driven with the same items and batch sizes, and the best of several windows
counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.peers import environment, last_line

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    peers = {name: environment(name) for name in ("reverb", "cpprb")}
    found = {name: last_line(python, HERE / f"{name}_side.py", options.repeat) for name, python in peers.items()}
    command = [sys.executable, "-m", "shoal", "bench", "replay", "--quick", "--json", "--repeat", options.repeat]
    found["shoal"] = last_line(*command)
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
