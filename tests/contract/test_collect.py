"""`shoal collect`: what a policy does becomes a dataset, and the environment can be asked whether it is true."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.algorithms import ppo
from shoal.cli.main import main
from shoal.data import Dataset, Episode
from shoal.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collect") / "run"
    cfg = ppo.Config(env="CartPole-v1", hidden=(8,), envs_per_actor=4, preset="none")
    shoal.train(cfg, run_dir=str(path), stop_updates=2, runtime="inline", eval_episodes=1, quiet=True)
    return path


def replayed(episode: Episode) -> bool:
    """Whether the environment does the same with the episode's seed and actions."""
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=episode.seed)
    seen, rewards, ends = [observation], [], (False, False)
    for action in episode.actions:
        observation, reward, *ends, _ = env.step(int(action))  # type: ignore[assignment]
        seen.append(observation)
        rewards.append(reward)
    env.close()
    return (
        np.array_equal(np.stack(seen), episode.observations["observation"])
        and np.array_equal(rewards, episode.rewards)
        and tuple(ends) == (episode.terminated, episode.truncated)
    )


@pytest.mark.parametrize("policy", ["greedy", "exploring", "random"])
def test_episodes_are_what_the_environment_does(
    run: Path, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    words = [
        "collect",
        str(run),
        "--output",
        str(path),
        "--episodes",
        "37",
        "--policy",
        policy,
        "--seed",
        "5",
        "--json",
    ]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    data = Dataset(path)
    data.verify()
    assert (len(data), data.env) == (37, "CartPole-v1")
    assert (told["episodes"], told["steps"]) == (37, data.steps)
    assert sorted(data.index["seed"].tolist()) == list(range(5, 42)), "each episode has a seed of its own"
    assert all(replayed(episode) for episode in data.episodes())
    chances = data.episode(0).log_probs
    if policy == "random":
        assert np.allclose(chances, -np.log(2.0))  # type: ignore[arg-type]
    assert (chances is None) == (policy == "greedy")


def test_the_same_seed_gives_the_same_data(run: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        shoal.collect(run, tmp_path / name, episodes=5, policy="random", seed=3)
    assert (tmp_path / "one" / "rows").read_bytes() == (tmp_path / "other" / "rows").read_bytes()


def test_nothing_is_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        shoal.collect(run, tmp_path / "there", episodes=1)
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["file"]


def test_an_output_is_asked_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", str(run)]) == 2
    assert "needs --output" in capsys.readouterr().err


def test_episodes_go_to_minari_by_its_id(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    shoal.collect(run, "minari:pole/random-v0", episodes=5, policy="random", seed=3)
    shoal.collect(run, tmp_path / "own", episodes=5, policy="random", seed=3)
    own = Dataset(tmp_path / "own")
    for there, here in zip(minari.load_dataset("pole/random-v0").iterate_episodes(), own.episodes(), strict=True):
        assert np.array_equal(there.observations, here.observations["observation"])
        assert np.array_equal(there.actions, here.actions)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["minari", "own"], "nothing else is left"
    with pytest.raises(UserError, match="is there already"):
        shoal.collect(run, "minari:pole/random-v0", episodes=5)
    with pytest.raises(UserError, match="the version is a must"):
        shoal.collect(run, "minari:pole/random", episodes=5)


def test_a_recording_goes_to_a_folder_first() -> None:
    with pytest.raises(UserError, match="shoal data export FOLDER --output minari:pole/replay-v0"):
        shoal.train(ppo.Config(env="CartPole-v1"), record_data="minari:pole/replay-v0", stop_updates=1, quiet=True)
