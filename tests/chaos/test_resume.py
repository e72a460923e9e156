"""A run whose command is killed again and again, and goes on every time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.checkpoints import Checkpoints

KILLS = 50  # half of them aimed into a save
TRAIN = ["--env", "CartPole-v1", "--envs-per-actor", "16", "--stop-steps", "1000000000", "--checkpoint-every", "1"]


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "shoal", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def rows(run: Path) -> list[dict[str, Any]]:
    """Every line is a row; only one that a kill cut short may not be, and that is the last."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def newest_number(run: Path) -> int:
    found, _ = Checkpoints(run / "checkpoints").newest()
    return 0 if found is None else int(found.path.name)


def wait_until(process: subprocess.Popen[bytes], condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_again_and_again_goes_on_and_solves_its_task(tmp_path: Path) -> None:
    run, chance = tmp_path / "run", random.Random(3)
    lost, during_a_save = 0.0, 0
    for kill in range(KILLS):
        words = ["train", "impala", *TRAIN, "--run-dir", str(run)] if kill == 0 else ["resume", str(run)]
        process, before = start(*words), newest_number(run)
        wait_until(process, lambda before=before: newest_number(run) > before)
        if kill % 2:  # aimed into a save
            wait_until(process, lambda: any(run.glob("checkpoints/.saving-*")), 3.0)
        else:
            time.sleep(chance.random())
        assert process.poll() is None, process.stderr and process.stderr.read()
        seconds = max((row["seconds"] for row in rows_so_far(run) if row["kind"] == "progress"), default=0.0)
        killed(process)
        during_a_save += any(run.glob("checkpoints/.saving-*"))
        found, complaints = Checkpoints(run / "checkpoints").newest()
        assert found is not None
        assert not complaints
        lost = max(lost, seconds - found.meta["seconds"])
    done = start("resume", str(run), "--stop-return", "400")
    _, said = done.communicate(timeout=300)
    assert done.returncode == 0, said.decode()
    told = rows(run)
    for kind in ("progress", "evaluation"):
        seconds = [row["seconds"] for row in told if row["kind"] == kind]
        assert seconds == sorted(seconds)
        assert len(set(seconds)) == len(seconds), "a row is there twice"
    steps = [row["counts"].get("env_steps", 0) for row in told if row["kind"] == "progress"]
    assert steps == sorted(steps)
    assert during_a_save >= KILLS // 10, "hardly any kill has hit a save"
    assert lost < 15.0  # an interval of a second, on a machine that has other things to do
    assert json.loads((run / "summary.json").read_text())["reached"]
    assert not list(run.glob("checkpoints/.*"))


def rows_so_far(run: Path) -> list[dict[str, Any]]:
    found = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
