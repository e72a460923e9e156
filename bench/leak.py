"""Whether memory grows: Ape-X DQN trains for a quarter of an hour after its replay is full.

    python -m bench.leak [--minutes 15]

Resident memory of every process is noted every five seconds; what the last minute's mean is above the first one's is
growth. The curves go to docs/curves/leak.png, the figures to docs/curves/leak.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from bench.learning import CURVES, SHOAL

WARM_UP = 60.0  # seconds: the replay is full after three, allocators have found their size after the rest
INTERVAL = 5.0
Memory = dict[str, list[float]]


def watch(minutes: float, folder: Path) -> Memory:
    """Resident megabytes of every process by name, from the end of the warm-up on."""
    command = [*SHOAL, "train", "apex_dqn", "--env", "CartPole-v1", "--run-dir", str(folder)]
    command += ["--stop-seconds", str(WARM_UP + 60 * minutes + 20)]
    main = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(WARM_UP)
        processes = {"main": psutil.Process(main.pid)}
        for child in psutil.Process(main.pid).children(recursive=True):
            processes[child.name()] = child
        if "learner" not in processes:
            raise RuntimeError(f"the training has no learner after {WARM_UP:g} s; there are {list(processes)}")
        memory: Memory = {name: [] for name in processes}
        for _ in range(int(60 * minutes / INTERVAL) + 1):
            for name, process in processes.items():
                memory[name].append(process.memory_info().rss / 1e6)
            time.sleep(INTERVAL)
        return memory
    finally:
        with contextlib.suppress(ProcessLookupError):
            main.terminate()
        main.wait()


def growth(memory: Memory) -> dict[str, float]:
    """By what part of the first minute's mean the last minute's is above it, per process."""
    minute = int(60 / INTERVAL)
    return {name: float(np.mean(seen[-minute:]) / np.mean(seen[:minute]) - 1) for name, seen in memory.items()}


def draw(memory: Memory, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, seen in memory.items():
        axes.plot(
            np.arange(len(seen)) * INTERVAL / 60, np.array(seen) / seen[0] * 100, label=f"{name} ({seen[0]:.0f} MB)"
        )
    axes.axhspan(99, 101, color="grey", alpha=0.15)
    axes.set(xlabel="minutes after the replay was full", ylabel="resident memory, % of its first value")
    axes.set(title="apex_dqn on CartPole-v1")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-leak-") as folder:
        memory = watch(options.minutes, Path(folder) / "run")
    found = growth(memory)
    for name, part in found.items():
        print(f"{name:<16} {memory[name][0]:8.1f} MB  {part:+.2%}")
    draw(memory, CURVES / "leak.png")
    report = {"minutes": options.minutes, "growth": found, "megabytes": memory}
    (CURVES / "leak.json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
