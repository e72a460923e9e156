"""SAC on episodes from a file: its page as it is, a source of its own, no actors, no replay; the evaluator judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import offline_sac
import pytest

import shoal
from shoal.checkpoints import Checkpoints
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.runs.directory import read_weights

EPISODES = 40  # of 200 steps each
SMALL: dict[str, Any] = {"actor_hidden": (8,), "critic_hidden": (8,), "batch": 32}
QUIET: dict[str, Any] = {"quiet": True, "eval_episodes": 1, "runtime": "inline"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "episodes.npz"
    offline_sac.write(path, EPISODES, seed=0)
    return str(path)


@pytest.fixture
def cfg(data: str) -> offline_sac.Config:
    return offline_sac.Config(file=data, **SMALL)


def random_state(path: Path) -> tuple[int, Any]:
    """Updates of the newest checkpoint, and the source's generator in it."""
    newest, _ = Checkpoints(path / "checkpoints").newest()
    assert newest is not None
    state = newest.part("learner")
    return state["updates"], state["source"]["random"]["state"]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_it_swings_up_what_it_has_never_tried(data: str, tmp_path: Path) -> None:
    """A random policy comes to −1200; a run ends by its updates, and its summary knows of no step."""
    cfg = offline_sac.Config(file=data, batch=64, actor_hidden=(64, 64), critic_hidden=(64, 64))
    options = {**QUIET, "eval_episodes": 5, "eval_every": 2.0}
    result = shoal.train(cfg, run_dir=str(tmp_path / "run"), stop_updates=600, **options)
    assert (result.stopped_by, result.exit_code) == ("updates", 0)
    assert (result.learner_steps, result.env_steps, result.trained_steps) == (600, 0, 600 * 64)
    assert result.saved_version == 600
    assert result.eval_return > -500.0
    assert '"transitions": 8000' in (tmp_path / "run" / "metrics.jsonl").read_text(), "what the source measures"


def test_a_seed_gives_the_same_bits(cfg: offline_sac.Config, tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        shoal.train(cfg, run_dir=str(tmp_path / name), stop_updates=30, seed=seed, **QUIET)
    one, again, other = (read_weights(tmp_path / name) for name in ("one", "same", "other"))
    assert same(one, again)
    assert not same(one, other)


def test_a_resumed_run_draws_what_would_have_been_drawn(cfg: offline_sac.Config, tmp_path: Path) -> None:
    options = {**QUIET, "checkpoint_updates": 20}
    shoal.train(cfg, run_dir=str(tmp_path / "whole"), stop_updates=60, **options)
    shoal.train(cfg, run_dir=str(tmp_path / "parts"), stop_updates=40, **options)
    updates, before = random_state(tmp_path / "parts")
    assert updates == 40
    shoal.resume(tmp_path / "parts", quiet=True, stop_updates=60)
    assert random_state(tmp_path / "whole") == random_state(tmp_path / "parts")
    assert random_state(tmp_path / "parts") != (60, before)
    assert same(read_weights(tmp_path / "whole"), read_weights(tmp_path / "parts"))


def test_processes_learn_the_same_and_go_on_where_they_were(cfg: offline_sac.Config, tmp_path: Path) -> None:
    """Nobody but source and learner has a say in it."""
    shoal.train(cfg, run_dir=str(tmp_path / "whole"), stop_updates=60, **QUIET)
    parts = shoal.train(cfg, run_dir=str(tmp_path / "parts"), stop_updates=40, **{**QUIET, "runtime": "local"})
    assert (parts.stopped_by, parts.exit_code, parts.env_steps) == ("updates", 0, 0)
    again = shoal.resume(tmp_path / "parts", quiet=True, stop_updates=60)
    assert (again.stopped_by, again.learner_steps) == ("updates", 60)
    assert same(read_weights(tmp_path / "whole"), read_weights(tmp_path / "parts"))


def test_two_learners_share_batches(cfg: offline_sac.Config, tmp_path: Path) -> None:
    two = replace(cfg, learners=2, batch=33)
    result = shoal.train(two, run_dir=str(tmp_path / "run"), stop_updates=20, **QUIET)
    assert (result.learner_steps, result.trained_steps) == (20, 20 * 33)


def test_the_command_trains_by_a_file(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, run = offline_sac.__file__, tmp_path / "run"
    small = ["--actor-hidden", "8", "--critic-hidden", "8", "--batch", "32", "--runtime", "inline"]
    given = ["train", page, "--file", data, *small, "--stop-updates", "50", "--run-dir", str(run)]
    assert main(given) == 0
    told = capsys.readouterr()
    assert "50 updates in" in told.out
    assert " 0 steps" not in told.out + told.err
    assert main(["status", str(run)]) == 0
    assert "at 50 updates" in capsys.readouterr().out
    assert (json.loads((run / "summary.json").read_text()))["stopped_by"] == "updates"
    assert (run / "curve.png").is_file()


def test_a_file_that_is_not_there_is_told_in_a_sentence(cfg: offline_sac.Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--file 'nowhere\.npz' is no file"):
        shoal.train(replace(cfg, file="nowhere.npz"), run_dir=str(tmp_path / "run"), stop_updates=50, **QUIET)
