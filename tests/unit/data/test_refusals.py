"""Options that data make senseless, and datasets in the wrong place: one sentence each, and never silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from tests.saved_runs import saved_run

import shoal
from logged_data import dataset
from shoal.cli.main import main
from shoal.data import Dataset, DatasetWriter, Origin, episode, open_dataset


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prefill", "{data}"), "--prefill fills a replay, which is there with --online alone"),
        (("--inference", "central"), "--inference central serves actors, which are there with --online alone"),
        (("--env-option", "g=1"), "--env-option is of an environment, and there is none: add --env."),
        (("--eval-env-option", "g=1"), "--eval-env-option is of an environment, and there is none: add --env."),
    ],
)
def test_options_of_actors_are_refused_where_there_are_data_alone(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = dataset("Pendulum-v1")
    given = [word.format(data=data) for word in words]
    run = str(tmp_path / "run")
    assert main(["train", "iql", "--data", data, "--stop-updates", "1", "--run-dir", run, *given]) == 2
    assert f"shoal: {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "judge", "export", "collect"])
def test_a_dataset_in_the_place_of_a_run_is_told(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"judge": ["--data", "x"], "collect": ["--output", str(tmp_path / "new")]}
    assert main([command, dataset("CartPole-v1"), *more.get(command, [])]) == 2
    assert "is a dataset: give the folder of a run, which shoal runs lists." in capsys.readouterr().err


def test_a_dataset_is_not_imported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "import", dataset("CartPole-v1"), "--output", str(tmp_path / "new")]) == 2
    assert "is a dataset of Shoal's already: use it as it is." in capsys.readouterr().err


def test_vectors_that_step_themselves_are_collected_from_too(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "ppo", env="torch/CartPole-v1")
    found = shoal.collect(run, tmp_path / "data", episodes=3, seed=1)
    assert (found.episodes, len(open_dataset(tmp_path / "data"))) == (3, 3)


def test_an_environment_that_cannot_be_is_told_before_anything_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(saved_run(tmp_path / "run", "bc", env="CartPole-v1"))
    words = ["judge", run, "--data", dataset("CartPole-v1"), "--updates", "5", "--episodes", "1"]
    assert main([*words, "--env", "Pendulum-v1"]) == 2
    assert "judging" not in capsys.readouterr().err
    assert main([*words, "--env", "none"]) == 0
    assert "there is no environment to play in (--env)" in " ".join(capsys.readouterr().out.split())


def test_a_dataset_whose_import_was_interrupted_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DatasetWriter(
        tmp_path / "data", spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2), origin=Origin("", "x", 1, False)
    ) as writer:
        writer.append(episode(np.zeros((3, 2)), [0, 1], [0.0, 1.0], terminated=True))
    assert len(Dataset(tmp_path / "data")) == 1
    assert main(["data", "show", str(tmp_path / "data")]) == 0
    assert "was not imported to its end: it has 1 episodes so far" in " ".join(capsys.readouterr().err.split())
