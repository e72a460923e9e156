"""The command where standard streams are closed, full, or know ASCII only: a word or an exit code, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.algorithms import ppo

REDIRECTIONS = {"closed": ">&-", "full": ">/dev/full", "ascii": ""}
SMALL = "--runtime inline --hidden 8 --envs-per-actor 2 --stop-updates 2 --eval-episodes 1"
SILENT = """
import sys
from gymnasium.envs.classic_control import CartPoleEnv

class Silent(CartPoleEnv):
    def step(self, action):
        sys.stdout = None
        return super().step(action)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    cfg = ppo.Config(env="CartPole-v1", hidden=(8,), envs_per_actor=2)
    shoal.train(cfg, runtime="inline", stop_updates=2, eval_episodes=1, run_dir=str(folder), quiet=True)
    return folder


def typed(words: str, redirection: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m shoal {words} {redirection}"
    return subprocess.run(line, shell=True, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("stream", REDIRECTIONS)
@pytest.mark.parametrize("words", ["--help", "train --help", "runs {folder}", "status {run}", "compare {run}"])
def test_no_traceback_for_a_stream_that_cannot_be_written(words: str, stream: str, trained: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii"} if stream == "ascii" else {}
    done = typed(words.format(run=trained, folder=trained.parent), REDIRECTIONS[stream], **environment)
    assert "Traceback" not in done.stderr
    if stream == "full":
        assert done.returncode == 1
        assert done.stderr.strip().endswith("shoal: standard output cannot be written: No space left on device")
    else:
        assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() or stream != "ascii"


def test_a_run_whose_messages_cannot_be_written_goes_on_to_its_end(tmp_path: Path) -> None:
    done = typed(f"train ppo --env CartPole-v1 {SMALL} --run-dir {tmp_path}/run", "2>/dev/full")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped_by"] == "updates"


def test_an_environment_that_loses_standard_output_does_not_silence_the_summary(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = typed(f"train ppo --env silent:Silent {SMALL} --run-dir {tmp_path}/run", "", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert f"run directory: {tmp_path}/run" in done.stdout
