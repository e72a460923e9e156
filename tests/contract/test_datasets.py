"""A page on a dataset: no environment at hand, or one that judges; the same draws after a kill, and by two learners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import logged_sac
import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.runs.directory import read_weights

SMALL: dict[str, Any] = {"actor_hidden": (8,), "critic_hidden": (8,), "batch": 32}
QUIET: dict[str, Any] = {"quiet": True, "eval_episodes": 1, "runtime": "inline"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "pendulum"
    logged_sac.write(path, 40, seed=0)
    return str(path)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_it_swings_up_what_it_has_never_tried(data: str, tmp_path: Path) -> None:
    """A random policy comes to −1200."""
    cfg = logged_sac.Config(data=data, env="Pendulum-v1", batch=64, actor_hidden=(64, 64), critic_hidden=(64, 64))
    options = {**QUIET, "eval_episodes": 5, "eval_every": 2.0}
    result = shoal.train(cfg, run_dir=str(tmp_path / "run"), stop_updates=600, **options)
    assert (result.learner_steps, result.env_steps, result.trained_steps) == (600, 0, 600 * 64)
    assert result.eval_return is not None
    assert result.eval_return > -500.0
    assert '"dataset_items": 8000' in (tmp_path / "run" / "metrics.jsonl").read_text(), "what the source measures"


def test_no_environment_is_needed(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, run = logged_sac.__file__, tmp_path / "run"
    small = ["--actor-hidden", "8", "--critic-hidden", "8", "--batch", "32", "--runtime", "inline"]
    assert main(["train", page, "--data", data, *small, "--stop-updates", "30", "--run-dir", str(run)]) == 0
    told = capsys.readouterr()
    assert "evaluation is left out" in told.out + told.err
    assert main(["status", str(run)]) == 0
    assert "on pendulum" in capsys.readouterr().out
    assert main(["eval", str(run), "--episodes", "1"]) == 2
    assert "--env is missing" in capsys.readouterr().err
    assert main(["eval", str(run), "--episodes", "1", "--env", "Pendulum-v1"]) == 0


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
def test_a_resumed_run_draws_what_would_have_been_drawn(data: str, tmp_path: Path, replay: str) -> None:
    cfg, options = logged_sac.Config(data=data, replay=replay, **SMALL), {**QUIET, "checkpoint_updates": 20}
    shoal.train(cfg, run_dir=str(tmp_path / "whole"), stop_updates=60, **options)
    shoal.train(cfg, run_dir=str(tmp_path / "parts"), stop_updates=40, **options)
    shoal.resume(tmp_path / "parts", quiet=True, stop_updates=60)
    assert same(read_weights(tmp_path / "whole"), read_weights(tmp_path / "parts"))


@pytest.mark.slow
def test_processes_learn_the_same_as_one_thread(data: str, tmp_path: Path) -> None:
    cfg = logged_sac.Config(data=data, **SMALL)
    shoal.train(cfg, run_dir=str(tmp_path / "inline"), stop_updates=30, **QUIET)
    shoal.train(cfg, run_dir=str(tmp_path / "local"), stop_updates=30, **{**QUIET, "runtime": "local"})
    assert same(read_weights(tmp_path / "inline"), read_weights(tmp_path / "local"))


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
def test_two_learners_share_batches(data: str, tmp_path: Path, replay: str) -> None:
    cfg = logged_sac.Config(data=data, replay=replay, learners=2, **{**SMALL, "batch": 33})
    result = shoal.train(cfg, run_dir=str(tmp_path / "run"), stop_updates=20, **QUIET)
    assert (result.learner_steps, result.trained_steps) == (20, 20 * 33)


def test_an_environment_of_other_spaces_is_refused(data: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit CartPole-v1: its observations are"):
        shoal.train(logged_sac.Config(data=data, env="CartPole-v1", **SMALL), run_dir=str(tmp_path / "run"), **QUIET)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stop_return": 1.0}, "--stop-return needs an environment"),
        ({"stop_steps": 10}, "--stop-steps never comes"),
        ({"record_every": 1.0}, "--record-every needs an environment"),
    ],
)
def test_what_needs_an_environment_is_refused(
    data: str, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        shoal.train(logged_sac.Config(data=data, **SMALL), run_dir=str(tmp_path / "run"), **QUIET, **options)


def test_data_that_are_not_there_are_told_in_a_sentence(tmp_path: Path) -> None:
    for given, sentence in ((None, "--data is missing"), ("nowhere", "There is no dataset nowhere")):
        with pytest.raises(UserError, match=sentence):
            shoal.train(logged_sac.Config(data=given, **SMALL), run_dir=str(tmp_path / "run"), **QUIET)
