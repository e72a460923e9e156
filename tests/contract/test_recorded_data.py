"""`--record-data`: what actors do while they train is a dataset; `--prefill`: a replay that begins with one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
import shoal.config
from shoal.algorithms import a3c, apex_dqn, ppo, r2d2, sac
from shoal.data import Dataset, DatasetWriter, episode
from shoal.data.checking import check
from shoal.errors import UserError

QUIET: dict[str, Any] = {"quiet": True, "eval_episodes": 1}


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_what_actors_do_is_a_dataset(tmp_path: Path, runtime: str) -> None:
    cfg = ppo.Config(env="CartPole-v1", hidden=(8,), actors=2, envs_per_actor=4, preset="none")
    data = tmp_path / "data"
    result = shoal.train(
        cfg, run_dir=str(tmp_path / "run"), stop_updates=6, runtime=runtime, record_data=str(data), **QUIET
    )
    found = Dataset(data)
    assert check(found).complaints == []
    assert found.env == "CartPole-v1"
    assert 0 < found.steps <= result.env_steps
    assert found.manifest.log_probs
    first = found.episode(0)
    assert np.array_equal(first.rewards, np.ones(len(first)))
    assert first.log_probs is not None
    assert (first.log_probs < 0).all()
    assert (np.abs(first.observations["observation"][0]) <= 0.05).all(), "an episode begins where CartPole does"


def test_a_replay_keeps_what_it_is_sent_and_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    cfg = sac.Config(env="Pendulum-v1", envs_per_actor=2, actor_hidden=(8,), critic_hidden=(8,), preset="none")
    cfg = shoal.config.replace(cfg, learning_starts=300, batch=16, samples_per_insert=1.0)
    run, data = tmp_path / "run", tmp_path / "data"
    shoal.train(cfg, run_dir=str(run), stop_steps=900, runtime="inline", record_data=str(data), **QUIET)
    before = Dataset(data)
    assert before.lengths.tolist() == [200] * len(before)
    shoal.resume(run, quiet=True, stop_steps=2500)
    after = Dataset(data)
    after.verify()
    assert len(after) > len(before)
    assert (after.lengths == 200).all(), "what was cut in two by the interruption is left out"
    with pytest.raises(UserError, match="is there already"):
        shoal.train(cfg, run_dir=str(tmp_path / "b"), stop_steps=9, record_data=str(data), **QUIET)


def test_a_killed_recording_leaves_whole_episodes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ["train", "ppo", "--env", "CartPole-v1", "--record-data", str(data), "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", *words, "--runtime", "inline", "--stop-return", "1e9"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            manifest = data / "manifest.json"
            if manifest.is_file() and json.loads(manifest.read_text())["episodes"]:
                break
            time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found = Dataset(data)
    assert check(found).complaints == []
    assert len(found) > 0


def test_who_sends_nothing_cannot_be_recorded(tmp_path: Path) -> None:
    cfg = a3c.Config(env="CartPole-v1", hidden=(8,))
    with pytest.raises(UserError, match="--record-data needs actors that send what they do"):
        shoal.train(cfg, run_dir=str(tmp_path / "run"), record_data=str(tmp_path / "data"), **QUIET)
    assert not (tmp_path / "data").exists()


# ---- prefill


def cartpole(path: Path, episodes: int, length: int = 30) -> Path:
    from gymnasium import spaces

    random = np.random.default_rng(0)
    with DatasetWriter(path, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2), env="CartPole-v1") as writer:
        for _ in range(episodes):
            seen, acted = random.normal(size=(length + 1, 4)).clip(-9, 9), random.integers(0, 2, length)
            writer.append(episode(seen, acted, np.ones(length), terminated=True))
    return path


@pytest.mark.parametrize("runtime", ["inline", "local"])
@pytest.mark.parametrize("page", [apex_dqn, r2d2], ids=["apex_dqn", "r2d2"])
def test_a_replay_begins_with_the_data(tmp_path: Path, page: Any, runtime: str) -> None:
    """So many that no actor could bring them before the first update."""
    path = cartpole(tmp_path / "data", 200)
    small: dict[str, Any] = {"hidden": (8,), "envs_per_actor": 1, "rows": 4, "preset": "none", "batch": 8}
    starts = 200 if page is r2d2 else 5000
    cfg = page.Config(env="CartPole-v1", prefill=str(path), learning_starts=starts, **small)
    run = tmp_path / "run"
    result = shoal.train(cfg, run_dir=str(run), stop_updates=20, runtime=runtime, **QUIET)
    assert result.learner_steps == 20
    assert result.env_steps < 5000
    assert "the replay was prefilled with 200 episodes" in (run / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_prefilled_run_resumes_to_the_bit(tmp_path: Path) -> None:
    from shoal.experiment.environments import describe_task
    from shoal.experiment.verifying import verify

    path = cartpole(tmp_path / "data", 20)
    cfg = apex_dqn.Config(
        env="CartPole-v1", prefill=str(path), hidden=(8,), envs_per_actor=2, learning_starts=300, batch=8, preset="none"
    )
    verdict = verify("apex_dqn", apex_dqn, cfg, describe_task(cfg), updates=30, seed=1)  # type: ignore[arg-type]
    assert verdict.identical, verdict


def test_data_of_other_spaces_are_refused(tmp_path: Path) -> None:
    path = cartpole(tmp_path / "data", 2)
    cfg = sac.Config(env="Pendulum-v1", prefill=str(path))
    with pytest.raises(UserError, match="does not fit Pendulum-v1"):
        shoal.train(cfg, run_dir=str(tmp_path / "run"), **QUIET)
