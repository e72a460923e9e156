"""A run on several machines: what is asked of the cluster, which node is where, and what nodes print there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from shoal.runs.directory import PRINTS
from shoal.runs.options import RunOptions
from shoal.runtime import OnCluster, Run

LARGEST = 1 << 26  # bytes of prints that are kept
SHOWN = 50  # lines that are shown, each once


def on_cluster(options: RunOptions) -> OnCluster:
    """What the options ask of the Ray runtime."""
    return OnCluster(
        address=options.ray_address,
        places=options.places(),
        actor_cpus=options.actor_cpus,
        wait_for_resources=options.wait_for_resources,
        encrypted=options.encryption,
    )


def told_places(run: Run) -> dict[str, str]:
    """The nodes of each machine in words: those of a group are counted. Nothing where there is but one machine."""
    places = run.machines()
    if len(set(places.values())) < 2:
        return {}
    found: dict[str, Counter[str]] = {}
    for node, machine in places.items():
        found.setdefault(machine, Counter())[node.partition("/")[0]] += 1
    return {
        machine: ", ".join(f"{count} × {name}" if count > 1 else name for name, count in nodes.items())
        for machine, nodes in sorted(found.items())
    }


class Prints:
    """What nodes print goes to a file of the run directory, with machine and node; every line is shown once."""

    def __init__(self, directory: Path, show: Callable[[str], None]) -> None:
        self._path, self._show = directory / PRINTS, show
        self._seen: set[str] = set()
        self._bytes = 0
        self._broken = False

    def take(self, node: str, machine: str, text: str) -> None:
        lines = text.splitlines()
        for line in lines:
            if line.strip() and line not in self._seen and len(self._seen) < SHOWN:
                self._seen.add(line)
                self._show(f"{node} on {machine}: {line}")
        stamp = time.strftime("%H:%M:%S")
        written = "".join(f"{stamp} {machine} {node}: {line}\n" for line in lines)
        self._bytes += len(written)
        if self._broken or self._bytes > LARGEST:
            return
        try:
            with self._path.open("a") as file:
                file.write(written)
        except OSError as error:
            self._broken = True
            self._show(f"what nodes print cannot be written to {self._path}: {error.strerror}")
