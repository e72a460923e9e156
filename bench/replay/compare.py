"""Shoal's replay service beside Reverb and cpprb, window by window in turns on the same machine.

    python -m bench.replay.compare [--rounds 10] [--output table.json]
    python -m bench.replay.compare --against ../before      with another checkout in place of the peers

Reverb and cpprb are installed from the package index into environments of their own below .bench, since their
dependencies conflict with Shoal's. Every side is given the same items, table sizes and batch sizes, fills its table and
waits; then each in turn has half a second to sample and half a second to insert, round after round, so that good and
bad minutes of a shared machine come to all of them. The best window of each counts; the median over rounds of the
ratio of two neighbours stands in brackets.

Reverb is measured twice: with its server in a process of its own, as Shoal's is, and with server and reader in one
process, where it does without its sockets. Most of the time goes into filling its tables with a million transitions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers import ROOT, environment

from shoal.bench.replay import WORKS

HERE = Path(__file__).resolve().parent
KINDS = ("sample", "insert")


Rates = dict[str, dict[str, list[float]]]  # by side and kind, one for each round


class Side:
    """A process that fills its table and then measures a window when it is told to."""

    def __init__(self, name: str, *command: Any, tree: Path = ROOT) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the side)
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=tree,
        )

    def answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise SystemExit(f"{self._name} ended before it answered:\n{self._errors.read()[-2000:]}")
        return line

    def measure(self, kind: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind}\n")
        self._process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        self._process.communicate()  # closes its input, which ends it
        self._errors.close()


def compare(work: str, rounds: int) -> Rates:
    shoal = [sys.executable, "-m", "bench.replay.shoal_side", work]
    reverb = [environment("reverb"), HERE / "reverb_side.py", work]
    commands: dict[str, list[Any]] = {
        "Reverb served": [*reverb, "served"],
        "Shoal served": [*shoal, "served"],
        "Reverb in process": [*reverb, "in process"],
        "Shoal in process": [*shoal, "in process"],
        "cpprb": [environment("cpprb"), HERE / "cpprb_side.py", work],
    }
    if work == "sequences":
        del commands["cpprb"]
    return take({name: Side(name, *command) for name, command in commands.items()}, rounds)


def take(sides: dict[str, Side], rounds: int) -> Rates:
    """All of them in turns."""
    try:
        for side in sides.values():
            side.answer()  # its table is full
        found: Rates = {name: {kind: [] for kind in KINDS} for name in sides}
        for _ in range(rounds):
            for kind in KINDS:
                for name, side in sides.items():
                    found[name][kind].append(side.measure(kind))
        return found
    finally:
        for side in sides.values():
            side.close()


def against(tree: Path, work: str, rounds: int) -> Rates:
    """The rates of this tree and of another one, which has an environment of its own."""
    words = "-m", "bench.replay.shoal_side", work
    pythons = {"now": (sys.executable, ROOT), "before": (tree / ".venv" / "bin" / "python", tree)}
    sides = {
        f"{name}, {where}": Side(name, python, *words, where, tree=home)
        for where in ("served", "in process")
        for name, (python, home) in pythons.items()
    }
    return take(sides, rounds)


def change(work: str, kind: str, found: Rates) -> str:
    """The median ratio of neighbouring windows, now to before."""
    cells = []
    for where in ("served", "in process"):
        pairs = zip(found[f"now, {where}"][kind], found[f"before, {where}"][kind])
        cells.append(f"{where} {median(now / before for now, before in pairs):.3f}")
    return f"{work:12} {kind:7} now/before: {', '.join(cells)}"


def row(work: str, kind: str, found: Rates) -> str:
    def ratio(ours: str, theirs: str) -> str:
        if theirs not in found:
            return "–"
        one, other = found[ours][kind], found[theirs][kind]
        usual = median(mine / yours for mine, yours in zip(one, other))
        return f"{max(one) / max(other):.2f}x ({usual:.2f}x)"

    def best(name: str) -> str:
        return f"{max(found[name][kind]):,.0f}" if name in found else "–"

    served, inside = "Shoal served", "Shoal in process"
    cells = [work, kind, best(served), best("Reverb served"), ratio(served, "Reverb served")]
    cells += [best("Reverb in process"), ratio(served, "Reverb in process")]
    cells += [best(inside), best("cpprb"), ratio(inside, "cpprb")]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--against", type=Path, help="another checkout of Shoal, in place of the peers")
    options = parser.parse_args()
    if options.against is not None:
        for work in WORKS:
            rates = against(options.against.resolve(), work, options.rounds)
            for kind in KINDS:
                print(change(work, kind, rates), flush=True)
        return
    found = {}
    print("| work | | Shoal served | Reverb served | | Reverb in process | | Shoal in process | cpprb | |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for work in WORKS:
        found[work] = compare(work, options.rounds)
        for kind in KINDS:
            print(row(work, kind, found[work]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
