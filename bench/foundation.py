"""Every figure of the foundation, measured in one go on a quiet machine: IMPALA on CartPole-v1 from the command line.

    python bench/foundation.py [--only limit throughput sync ray seeds start weights] [--output figures.json]

Throughput and learning use the same command and the same default config. The machine's own limit is measured first and
last, since absolute figures move with the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHOAL = [sys.executable, "-m", "shoal"]
TASK = ["--env", "CartPole-v1"]


def command(*words: str) -> dict[str, Any]:
    """The object that a command prints as its last line."""
    done = subprocess.run([*SHOAL, *words, "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"shoal {' '.join(words)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def limit() -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("limit.py"))], capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def throughput(*words: str, repeat: int = 5) -> dict[str, Any]:
    found = command("bench", "throughput", "impala", *TASK, "--seconds", "6", "--repeat", str(repeat), *words)
    runs = [round(run["env_steps_per_second"]) for run in found["runs"]]
    return {"median": round(statistics.median(runs)), "runs": runs, "trained": found["trained_steps_per_second"]}


def seeds() -> dict[str, Any]:
    """Ten seeds until the evaluator has confirmed 475, at most a minute each."""
    rows = []
    for seed in range(1, 11):
        row = command("train", "impala", *TASK, "--seed", str(seed), "--stop-return", "475", "--stop-seconds", "60")
        kept = ("seed", "reached", "eval_return", "seconds_to_target", "env_steps", "first_update_seconds", "run_dir")
        rows.append({name: row[name] for name in kept})
        print(json.dumps(rows[-1]), file=sys.stderr)
    times = sorted(row["seconds_to_target"] for row in rows if row["reached"])
    median = statistics.median(times + [float("inf")] * (len(rows) - len(times)))
    return {"reached": len(times), "of": len(rows), "median_seconds": median, "runs": rows}


def start() -> dict[str, Any]:
    """Seconds from typing the command to the first update, and the proportional memory of the whole run."""
    words = ["train", "impala", *TASK, "--stop-seconds", "8", "--stop-return", "1000", "--json"]
    running = subprocess.Popen([*SHOAL, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(7.0)
    memory = sum(map(_proportional, _tree(running.pid)))
    row = json.loads(running.communicate()[0].strip().splitlines()[-1])
    return {"first_update_seconds": row["first_update_seconds"], "memory_mb": round(memory / 1e3, 1)}


def _tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _proportional(pid: int) -> int:
    """Kilobytes, pages shared with others counted in part."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def weights() -> dict[str, float]:
    """What publishing 1.7 M parameters costs the learner, and a reader with nothing new."""
    import numpy as np

    from shoal.program import Handle, Program
    from shoal.runtime import launch
    from shoal.services.weights import WeightStore

    program = Program()
    program.add("weights", WeightStore)
    arrays = {f"layer{index}": np.ones((410, 410), np.float32) for index in range(10)}
    publish, idle = [], []
    with launch(program, "local") as run:
        writer, reader = run.client(Handle("weights")), run.client(Handle("weights"))
        for version in range(200):
            begun = time.perf_counter()
            writer.publish(arrays, version)
            publish.append(time.perf_counter() - begun)
            found = reader.newer(version - 1)
            assert found is not None
            begun = time.perf_counter()
            for _ in range(100):
                reader.newer(version)
            idle.append((time.perf_counter() - begun) / 100)
    return {
        "parameters": sum(array.size for array in arrays.values()),
        "publish_ms_median": statistics.median(publish) * 1e3,
        "publish_ms_best": min(publish) * 1e3,
        "nothing_new_us_median": statistics.median(idle) * 1e6,
    }


PARTS = {
    "limit": limit,
    "throughput": throughput,
    "sync": lambda: throughput("--vectorizer", "sync", repeat=3),
    "ray": lambda: throughput("--runtime", "ray", repeat=3),
    "seeds": seeds,
    "start": start,
    "weights": weights,
    "limit again": limit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = {}
    for name in options.only:
        figures[name] = PARTS[name]()
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
