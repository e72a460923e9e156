"""A service that is killed in the middle of a save leaves the last complete save, or the new one, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.replay import Prioritized, Replay, Table

CHILD = """
import sys
import numpy as np
from shoal.replay import Prioritized, Replay, Table, Writer, n_step

replay = Replay([Table("table", 30_000, sampler=Prioritized(0.6))])
writer = Writer(replay, {"table": n_step(1, 0.9)})
path, step = sys.argv[1], 0
while True:
    for _ in range(20):
        count = np.arange(step, step + 32.0)[:, None] + np.zeros((1, 32))
        observation = np.repeat(count[..., None], 40, 2)
        writer.append({"observation": observation, "reward": count, "terminated": count < 0})
        step += 32
    replay.save(path)
    print(replay.info()["table"]["inserts"], flush=True)
"""


def read(path: Path) -> tuple[int, int]:
    """Load a checkpoint and check that every row is what it should be; inserts and size."""
    replay = Replay([Table("table", 30_000, sampler=Prioritized(0.6))])
    replay.load(path)
    info = replay.info()["table"]
    for _ in range(20):
        data = replay.sample("table", 500).data
        assert (data["observation"] == data["reward"][:, None]).all()
        assert (data["next_observation"] == data["reward"][:, None] + 1).all()
    return info["inserts"], info["size"]


def run_and_kill(path: Path, saves: int, delay: float) -> int:
    """Start a service that saves all the time, kill it a little after so many saves; inserts in the last one known."""
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    known = 0
    for _ in range(saves):
        known = int(process.stdout.readline())
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    return int(rest[-1]) if rest and rest[-1].isdigit() else known


@pytest.mark.parametrize("delay", [0.01, 0.05])
def test_a_kill_during_a_save_leaves_a_complete_checkpoint(tmp_path: Path, delay: float) -> None:
    known = run_and_kill(tmp_path, 2, delay)
    inserts, size = read(tmp_path)
    assert inserts >= known, "an acknowledged save was lost"
    assert size == min(inserts, 30_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_kills_at_random_moments(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for _ in range(25):
        known = run_and_kill(tmp_path, int(generator.integers(1, 4)), float(generator.random() * 0.3))
        inserts, size = read(tmp_path)
        assert inserts >= known
        assert size == min(inserts, 30_000)
