"""The tasks that come with the project, and one of every family of Gymnasium's that has an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import envs


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
def test_hidden_cartpole_is_cartpole_without_velocities(vectorizer: Any) -> None:
    hidden = envs.make("shoal/CartPoleHidden-v0", 3, seed=4, vectorizer=vectorizer)
    full = envs.make("CartPole-v1", 3, seed=4, vectorizer=vectorizer)
    assert hidden.observation_space.shape == (2,)
    assert np.array_equal(hidden.reset(), full.reset()[:, [0, 2]])
    for t in range(60):
        action = np.full(3, t % 3 == 0, np.int64)
        ours, whole = hidden.step(action), full.step(action)
        assert np.array_equal(ours.observation, whole.observation[:, [0, 2]])
        assert np.array_equal(ours.terminated, whole.terminated)
    assert hidden.episodes() == full.episodes()


def answers(vector: envs.Envs, remember: bool, episodes: int = 40) -> float:
    """The mean return of one who names the cue it saw, or one who always says 0."""
    observation = vector.reset()
    cue = np.zeros(vector.count, np.int64)
    found: list[envs.Episode] = []
    while len(found) < episodes:
        shown = observation[:, :-1].any(axis=1)
        cue[shown] = observation[shown, :-1].argmax(axis=1)
        observation = vector.step(cue if remember else np.zeros_like(cue)).observation
        found += vector.episodes()
    assert {episode.length for episode in found} == {31}
    return float(np.mean([episode.return_ for episode in found]))


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
def test_recall_is_solved_by_memory_and_only_by_it(vectorizer: Any) -> None:
    vector = envs.make("shoal/Recall-v0", 8, seed=0, vectorizer=vectorizer)
    assert answers(vector, remember=True) == 1.0
    assert 0.05 < answers(vector, remember=False, episodes=80) < 0.5


def test_recall_shows_the_cue_first_and_asks_exactly_after_the_delay() -> None:
    vector = envs.make("shoal/Recall-v0", 5, seed=1, options={"delay": 3, "cues": 2})
    rows = [vector.reset(), *(vector.step(np.zeros(5, np.int64)).observation for _ in range(9))]
    shown = np.stack(rows)[:, :, :2].any(axis=(1, 2))
    asked = np.stack(rows)[:, :, 2].all(axis=1)
    assert np.flatnonzero(shown).tolist() == [0, 5]
    assert np.flatnonzero(asked).tolist() == [3, 8]


@pytest.mark.parametrize(
    ("module", "spec", "kind"),
    [
        ("ale_py", "ALE/Pong-v5", "atari"),
        ("Box2D", "LunarLander-v3", "classic"),
        ("Box2D", "BipedalWalker-v3", "control"),
        ("mujoco", "HalfCheetah-v5", "control"),
        ("gymnasium", "Blackjack-v1", "classic"),
        ("gymnasium", "Acrobot-v1", "classic"),
    ],
)
def test_families_of_environments_run(
    module: str, spec: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it runs
    found = envs.describe(spec)
    assert found.kind == kind
    vector = envs.make(spec, 2, seed=0)
    vector.action_space.seed(0)
    vector.reset()
    done = np.zeros(2, np.bool_)
    for _ in range(30):
        step = vector.step(np.stack([vector.action_space.sample() for _ in range(2)]))
        assert np.array_equal(step.valid, ~done)
        done = step.terminated | step.truncated
    vector.close()


def test_the_native_atari_vector_keeps_to_autoreset() -> None:
    pytest.importorskip("ale_py")
    vector = envs.make("ALE/Pong-v5", 2, seed=0, options={"max_num_frames_per_episode": 200, "num_threads": 1})
    observation = vector.reset()
    assert observation.dtype == np.uint8
    done = np.zeros(2, np.bool_)
    ends = 0
    for _ in range(150):
        step = vector.step(np.zeros(2, np.int64))
        assert np.array_equal(step.valid, ~done)
        done = step.terminated | step.truncated
        ends += int(done.sum())
    vector.close()
    assert ends >= 2
    assert {episode.length for episode in vector.episodes()} <= set(range(20, 60))
