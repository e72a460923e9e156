"""What happens at the end of an episode, proven with observations that say which stream, episode and step they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import counting_envs
from shoal import envs

STEPS = 60
SPECS = [
    ("counting_envs:counting", "sync"),
    ("counting_envs:counting", "async"),
    ("counting_envs:counting_vector", "native"),
]
ENDS = [("terminated",), ("truncated",), ("terminated", "truncated", "truncated")]


@pytest.fixture(params=SPECS, ids=lambda spec: spec[1])
def spec(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param


@pytest.fixture(params=ENDS, ids="-".join)
def ends(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    return request.param


def collect(spec: tuple[str, Any], ends: tuple[Any, ...], count: int = 3) -> tuple[dict[str, Any], list[envs.Episode]]:
    """Rows as an actor would store them: the observation acted on, and what the action gave."""
    vector = envs.make(spec[0], count, seed=5, options={"ends": ends}, vectorizer=spec[1])
    observation = vector.reset()
    rows: list[dict[str, Any]] = []
    for _ in range(STEPS):
        step = vector.step(np.zeros(count, np.int64))
        given = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated, "valid": step.valid}
        rows.append({**given, "observation": observation, "next": step.observation})
        observation = step.observation
    finished = vector.episodes()
    vector.close()
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}, finished


def test_no_transition_crosses_an_episode(spec: Any, ends: Any) -> None:
    rows, _ = collect(spec, ends)
    valid = rows["valid"]
    before, after = rows["observation"][valid], rows["next"][valid]
    assert np.array_equal(before[:, :2], after[:, :2])  # the same stream and episode
    assert np.array_equal(before[:, 2] + 1, after[:, 2])  # the next step of it


def test_no_transition_is_lost_and_none_repeated(spec: Any, ends: Any) -> None:
    rows, _ = collect(spec, ends)
    for env in range(rows["valid"].shape[1]):
        valid = rows["valid"][:, env]
        seen = [(int(episode), int(step)) for _, episode, step in rows["observation"][valid, env]]
        stream = int(rows["observation"][0, env, 0])
        expected = [(e, s) for e in range(STEPS) for s in range(counting_envs.episode_length(stream, e))]
        assert seen == expected[: len(seen)]
        assert len(seen) + np.count_nonzero(~valid) == STEPS


def test_every_reward_belongs_to_the_observation_acted_on(spec: Any, ends: Any) -> None:
    rows, _ = collect(spec, ends)
    _, episode, step = np.moveaxis(rows["observation"], -1, 0)
    expected = np.where(rows["valid"], 100 * episode + step, 0)
    assert rows["reward"].dtype == np.float32
    assert np.array_equal(rows["reward"], expected)


def test_the_row_after_an_end_holds_the_final_observation_and_is_invalid(spec: Any, ends: Any) -> None:
    rows, _ = collect(spec, ends)
    done = rows["terminated"] | rows["truncated"]
    assert np.array_equal(~rows["valid"][1:], done[:-1])
    assert rows["valid"][0].all()
    for stream, episode, step in rows["observation"][~rows["valid"]].astype(int):
        assert step == counting_envs.episode_length(stream, episode)
    first = rows["next"][~rows["valid"]]
    assert np.all(first[:, 2] == 0)
    assert not done[~rows["valid"]].any()


def test_an_end_is_a_termination_or_a_truncation_as_the_environment_said(spec: Any, ends: Any) -> None:
    rows, _ = collect(spec, ends)
    for t, env in np.argwhere(rows["terminated"] | rows["truncated"]):
        stream, episode, _ = rows["observation"][t, env].astype(int)
        assert rows["terminated"][t, env] == (counting_envs.episode_end(stream, episode, ends) == "terminated")
        assert rows["truncated"][t, env] != rows["terminated"][t, env]


def test_every_finished_episode_is_reported_once_with_its_return_and_length(spec: Any, ends: Any) -> None:
    rows, finished = collect(spec, ends)
    expected = []
    for t, env in np.argwhere(rows["terminated"] | rows["truncated"]):
        stream, episode, _ = rows["observation"][t, env].astype(int)
        length = counting_envs.episode_length(stream, episode)
        expected.append((sum(counting_envs.reward_of(int(episode), step) for step in range(length)), length))
    assert finished == expected
    assert len(finished) > 20


def test_a_vector_that_is_careless_on_reset_rows_is_corrected() -> None:
    vector = envs.make("sample_envs:careless", 3, seed=0)
    vector.reset()
    for _ in range(20):
        step = vector.step(np.zeros(3, np.int64))
        assert not step.reward[~step.valid].any()
        assert not step.terminated[~step.valid].any()


def test_a_reset_gives_up_running_episodes_and_reports_only_finished_ones() -> None:
    vector = envs.make("counting_envs:counting_vector", 1, seed=0, options={"lengths": (4,)})
    vector.reset()
    for _ in range(7):  # an episode of four, its reset row, two steps of the next
        vector.step(np.zeros(1, np.int64))
    vector.reset()
    for _ in range(4):
        step = vector.step(np.zeros(1, np.int64))
        assert step.valid.all()
    assert [episode.length for episode in vector.episodes()] == [4, 4]
    assert vector.episodes() == []


@pytest.mark.parametrize("asked_every", [1, 7, 400])
def test_episodes_do_not_depend_on_how_often_they_are_asked_for(asked_every: int) -> None:
    vector = envs.make("counting_envs:counting_vector", 5, seed=0)
    vector.reset()
    found: list[envs.Episode] = []
    for t in range(400):
        vector.step(np.zeros(5, np.int64))
        if (t + 1) % asked_every == 0:
            found += vector.episodes()
    found += vector.episodes()
    lengths = sorted(episode.length for episode in found)
    per_length = np.bincount(lengths)[[1, 2, 3, 5]]
    assert per_length.min() > 100
    assert sum(lengths) + len(lengths) <= 5 * 400  # every episode is followed by a reset row
    assert sum(lengths) + len(lengths) >= 5 * (400 - 6)
