"""`shoal resume` and `--resume auto` as they are typed: after SIGTERM, after the end, with what cannot change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms import impala
from shoal.checkpoints import Checkpoints
from shoal.cli.main import main
from shoal.runs.directory import read_weights

SMALL = ["--env", "CartPole-v1", "--envs-per-actor", "2", "--hidden", "8", "--eval-episodes", "2"]
INLINE = [*SMALL, "--runtime", "inline"]


def summary(run: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((run / "summary.json").read_text())
    return read


@pytest.mark.timeout(180)
def test_resume_auto_starts_goes_on_after_sigterm_and_does_nothing_after_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["train", "impala", *SMALL, "--run-dir", str(run), "--resume", "auto", "--checkpoint-updates", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "shoal", *words, "--stop-updates", "1000000000"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        deadline = time.monotonic() + 90
        while not list(run.glob("checkpoints/0*")) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert summary(run)["stopped_by"] == "interrupt"
    found, complaints = Checkpoints(run / "checkpoints").newest()
    assert found is not None
    assert not complaints
    capfd.readouterr()
    again = [*words, "--runtime", "inline", "--stop-updates", str(found.meta["updates"] + 3)]
    assert main(again) == 0
    assert f"going on from {found.path.name}" in capfd.readouterr().err
    assert summary(run)["learner_steps"] == found.meta["updates"] + 3
    before = (run / "metrics.jsonl").read_text()
    assert main(again) == 0
    assert "has ended (stopped by updates)" in capfd.readouterr().err
    assert (run / "metrics.jsonl").read_text() == before


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mark", ["run.lock", "config.json"])
def test_a_run_that_is_killed_while_it_starts_is_started_by_the_same_line(tmp_path: Path, mark: str) -> None:
    """As by a batch scheduler, which knows nothing of what a run has come to."""
    run = tmp_path / "run"
    words = ["train", "impala", *SMALL, "--run-dir", str(run), "--resume", "auto"]
    with subprocess.Popen([sys.executable, "-m", "shoal", *words, "--stop-updates", "1000000"]) as first:
        deadline = time.monotonic() + 90
        while not (run / mark).exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        first.kill()
    assert not list(run.glob("checkpoints/0*"))
    assert main([*words, "--runtime", "inline", "--stop-updates", "3"]) == 0
    assert summary(run)["learner_steps"] == 3


@pytest.mark.parametrize("algorithm", ["impala", "a3c", "apex_dqn"])
def test_a_run_whose_checkpoints_were_removed_goes_on_from_its_weights_and_loses_no_row(
    tmp_path: Path, algorithm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    few = ["--learning-starts", "200"] if algorithm == "apex_dqn" else []
    assert main(["train", algorithm, *INLINE, *few, "--run-dir", str(run), "--stop-updates", "5"]) == 0
    before, rows = summary(run), (run / "metrics.jsonl").read_text()
    old = read_weights(run)
    shutil.rmtree(run / "checkpoints")
    capfd.readouterr()
    assert main(["resume", str(run), "--stop-updates", "9", "--learning-rate", "1e-60"]) == 0
    assert "there is no checkpoint: going on from weights.npz, 5 updates" in capfd.readouterr().err
    after = summary(run)
    assert (run / "metrics.jsonl").read_text().startswith(rows)
    assert after["learner_steps"] == after["saved_version"] == 9
    assert int(str(after["env_steps"])) > int(str(before["env_steps"]))
    assert all(np.array_equal(old[name], value) for name, value in read_weights(run).items())


def test_resume_auto_goes_on_from_weights_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ["train", "impala", *INLINE, "--run-dir", str(run), "--resume", "auto"]
    assert main([*words, "--stop-updates", "5"]) == 0
    shutil.rmtree(run / "checkpoints")
    told = summary(run) | {"stopped_by": "interrupt"}
    (run / "summary.json").write_text(json.dumps(told))
    rows = (run / "metrics.jsonl").read_text()
    assert main([*words, "--stop-updates", "9"]) == 0
    assert "going on from weights.npz, 5 updates" in capfd.readouterr().err
    assert (run / "metrics.jsonl").read_text().startswith(rows)
    assert summary(run)["learner_steps"] == 9


def test_rows_that_a_killed_run_makes_again_are_kept_aside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "impala", *INLINE, "--run-dir", str(run), "--stop-updates", "5"]) == 0
    lost = '{"kind": "evaluation", "eval_return": 999.0, "version": 6, "seconds": 99.0, "env_steps": 99999}\n'
    with (run / "metrics.jsonl").open("a") as file:
        file.write(lost)  # as of a life that was killed before its next checkpoint
    capfd.readouterr()
    assert main(["resume", str(run), "--stop-updates", "6"]) == 0
    assert "now in metrics.cut.jsonl, as these steps are made again" in capfd.readouterr().err
    assert lost not in (run / "metrics.jsonl").read_text()
    assert (run / "metrics.cut.jsonl").read_text().endswith(lost)


def test_an_algorithm_without_a_state_is_told_once_runs_and_goes_on_from_its_weights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = Path(impala.__file__).read_text(encoding="utf-8")
    assert "(Stateful)" in page
    (tmp_path / "mine.py").write_text(page.replace("(Stateful)", ""), encoding="utf-8")
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "mine.py"), *INLINE, "--run-dir", str(run), "--stop-updates", "3"]) == 0
    assert capfd.readouterr().err.count("has no state_dict and load_state_dict") == 1
    old = read_weights(run)
    assert main(["resume", str(run), "--stop-updates", "4", "--learning-rate", "1e-60"]) == 0
    assert all(np.array_equal(old[name], value) for name, value in read_weights(run).items())


def test_a_network_of_another_size_is_refused_in_one_sentence_before_anything_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "impala", *INLINE, "--run-dir", str(run), "--stop-updates", "3"]) == 0
    capfd.readouterr()
    assert main(["resume", str(run), "--stop-updates", "6", "--hidden", "16"]) == 2
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("shoal: The network cannot change when a run goes on: torso")
    assert "Traceback" not in said


def test_weights_that_are_older_than_the_newest_checkpoint_are_not_played(tmp_path: Path) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    assert main(["train", "impala", *INLINE, "--run-dir", str(run), "--stop-updates", "3"]) == 0
    kept.mkdir()
    for name in ("weights.npz", "summary.json"):
        shutil.copy(run / name, kept / name)
    assert main(["resume", str(run), "--stop-updates", "9"]) == 0
    ended = read_weights(run)
    for name in ("weights.npz", "summary.json"):  # as if it had been killed after its last checkpoint
        shutil.copy(kept / name, run / name)
    played = read_weights(run)
    assert all(np.array_equal(played[name], ended[name]) for name in ended)
    with np.load(kept / "weights.npz") as old:
        assert not all(np.array_equal(played[name], old[name]) for name in ended)
