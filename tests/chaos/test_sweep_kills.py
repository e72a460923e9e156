"""A sweep of twelve trials, killed twice with SIGKILL: the same command ends it, and no run is run twice to the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SWEEP = """
algorithm = "impala"
env = "CartPole-v1"
runtime = "inline"
stop_updates = 60
checkpoint_updates = 20
envs_per_actor = 4
unroll = 5
batch = 4
queue = 4
eval_every = 1e6
eval_episodes = 1

[sweep]
parallel = 2

[sweep.parameters]
learning_rate = [3e-4, 1e-3, 3e-3]
hidden = [[8], [16]]
gamma = [0.9, 0.99]
"""


def summaries(folder: Path) -> dict[str, float]:
    """When each run that has ended wrote its result."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("runs/*/summary.json") if _by_rule(path)}


def _by_rule(path: Path) -> bool:
    return bool(json.loads(path.read_text())["stopped_by"] == "updates")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twelve_trials_killed_twice_are_twelve_results_and_none_is_run_twice(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(SWEEP)
    folder, command = tmp_path / "sweeps" / "cart", [sys.executable, "-m", "shoal", "sweep", "cart.toml", "--json"]
    ended: dict[str, float] = {}
    for enough in (3, 7):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children: list[psutil.Process] = []
        while len(summaries(folder)) < enough or not children:
            assert process.poll() is None
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert psutil.wait_procs(children, timeout=60)[1] == [], "runs end when their sweep is gone"
        found = summaries(folder)
        assert all(found[name] == when for name, when in ended.items())
        ended = found
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = summaries(folder)
    assert len(found) == 12
    assert all(found[name] == when for name, when in ended.items()), "what was done has not been run again"
    result = json.loads(done.stdout.splitlines()[-1])
    assert [trial["state"] for trial in result["trials"]] == ["done"] * 12
    assert all(trial["runs"] == 1 for trial in result["trials"])
    assert sorted(trial["trial"] for trial in result["trials"]) == list(range(12))
