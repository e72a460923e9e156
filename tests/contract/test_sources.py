"""A learner whose source reads a file: no actors, no replay, no environment step, and a run like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_source
import numpy as np
import pytest

from shoal.checkpoints import Checkpoints
from shoal.experiment.checkpointing import Checkpointer
from shoal.experiment.training import resume, train
from shoal.runs.directory import read_weights

OPTIONS: dict[str, Any] = {"quiet": True, "eval_episodes": 1, "checkpoint_updates": 20}


@pytest.fixture
def cfg(tmp_path: Path) -> data_source.Config:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32))
    return data_source.Config(env="CartPole-v1", data=str(tmp_path / "data.npy"))


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_run_without_environment_steps_is_a_run(runtime: str, cfg: data_source.Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = train(cfg, run_dir=str(path), runtime=runtime, stop_updates=60, **OPTIONS)
    assert (result.stopped_by, result.learner_steps, result.env_steps) == ("updates", 60, 0)
    assert result.exit_code == 0
    assert result.train_seconds > 0.0
    assert result.trained_steps == 60 * data_source.BATCH
    newest, _ = Checkpoints(path / "checkpoints").newest()
    assert newest is not None
    assert newest.meta["updates"] == 60
    assert '"replay_size": 50' in (path / "metrics.jsonl").read_text(), "what the source measures is reported"
    before = newest.part("learner")["source"]["read"]
    again = resume(path, quiet=True, stop_updates=80)
    assert (again.learner_steps, again.stopped_by) == (80, "updates")
    newest, _ = Checkpoints(path / "checkpoints").newest()
    assert newest is not None
    assert newest.part("learner")["source"]["read"] == before + 20 * data_source.BATCH, "it goes on where it was"


def test_inline_it_goes_on_to_the_last_bit(cfg: data_source.Config, tmp_path: Path) -> None:
    options = {**OPTIONS, "runtime": "inline"}
    train(cfg, run_dir=str(tmp_path / "whole"), stop_updates=80, **options)
    train(cfg, run_dir=str(tmp_path / "parts"), stop_updates=40, **options)
    resume(tmp_path / "parts", quiet=True, stop_updates=80)
    whole, parts = (read_weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_last_checkpoint_that_cannot_be_written_does_not_cost_the_weights(
    cfg: data_source.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(*arguments: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Checkpointer, "finish", finish)
    result = train(cfg, run_dir=str(tmp_path / "run"), runtime="inline", stop_updates=20, **OPTIONS)
    assert result.saved_version == 20
    assert read_weights(tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").is_file()
    assert "the last checkpoint could not be written" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_seconds_stop_it_too(cfg: data_source.Config, tmp_path: Path) -> None:
    result = train(cfg, run_dir=str(tmp_path / "run"), runtime="local", stop_seconds=1.0, **OPTIONS)
    assert result.stopped_by == "seconds"
    assert result.learner_steps > 0
