"""A limit ends episodes that nothing else ends, and keeps to the stream: no transition crosses a reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import counting_envs
from shoal import envs

LIMIT = 4
ENVS = [
    ("counting_envs:counting", "sync"),
    ("counting_envs:counting", "async"),
    ("counting_envs:counting_vector", "native"),
]


@pytest.fixture(params=ENVS, ids=lambda env: env[1])
def env(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param


def collect(env: tuple[str, Any], lengths: tuple[int, ...], count: int = 3, steps: int = 60) -> Any:
    options = {"lengths": lengths, "ends": ("terminated",)}
    vector = envs.make(env[0], count, seed=5, options=options, vectorizer=env[1], limit=LIMIT)
    observation = vector.reset()
    rows: list[dict[str, Any]] = []
    for _ in range(steps):
        step = vector.step(np.zeros(count, np.int64))
        given = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated, "valid": step.valid}
        rows.append({**given, "observation": observation, "next": step.observation})
        observation = step.observation
    finished = vector.episodes()
    vector.close()
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}, finished


def test_endless_episodes_are_truncated_after_the_limit_with_their_return_so_far(env: Any) -> None:
    rows, finished = collect(env, (10**9,))
    assert {episode.length for episode in finished} == {LIMIT}
    expected = [
        sum(counting_envs.reward_of(episode, step) for step in range(LIMIT)) for episode in range(60 // (LIMIT + 1))
    ]
    assert sorted({episode.return_ for episode in finished}) == expected
    assert rows["truncated"].sum() == len(finished) == 3 * 60 // (LIMIT + 1)
    assert not rows["terminated"].any()


@pytest.mark.parametrize("lengths", [(10**9,), (10**9, 2), (1, 10**9, 3, 2), (LIMIT,), (LIMIT, 10**9), (2, 3)])
def test_no_transition_crosses_a_reset_and_no_episode_outlives_the_limit(env: Any, lengths: tuple[int, ...]) -> None:
    rows, finished = collect(env, lengths, count=5)
    valid = rows["valid"]
    before, after = rows["observation"][valid], rows["next"][valid]
    assert np.array_equal(before[:, :2], after[:, :2])  # the same stream and episode
    assert np.array_equal(before[:, 2] + 1, after[:, 2])
    assert after[:, 2].max() <= LIMIT
    done = rows["terminated"] | rows["truncated"]
    assert not valid[1:][done[:-1]].any()
    assert np.all(rows["next"][~valid][:, 2] == 0)  # the row after an end shows a first observation
    assert not rows["reward"][~valid].any()
    assert len(finished) == done.sum()
    assert sum(episode.length for episode in finished) <= valid.sum()
    assert sum(episode.return_ for episode in finished) <= rows["reward"].sum()


def test_an_end_by_itself_at_the_limit_stays_a_termination(env: Any) -> None:
    rows, finished = collect(env, (LIMIT,))
    assert rows["terminated"].sum() == len(finished) == 3 * 60 // (LIMIT + 1)
    if env[1] == "native":  # Gymnasium's TimeLimit says both
        assert not rows["truncated"].any()


def test_the_first_episode_of_every_environment_is_whole_or_cut_exactly_at_the_limit(env: Any) -> None:
    """Which is what an evaluator counts: nobody's first episode is cut because somebody else reached the limit."""
    rows, _ = collect(env, (2, 10**9, 3, 4), count=8, steps=LIMIT + 1)
    done = rows["terminated"] | rows["truncated"]
    for number in range(8):
        stream, episode, _ = rows["observation"][0, number].astype(int)
        own = counting_envs.episode_length(stream, episode, (2, 10**9, 3, 4))
        assert np.flatnonzero(done[:, number])[0] + 1 == min(own, LIMIT)


def test_an_environment_without_a_limit_ends_in_the_evaluators_version() -> None:
    spec = envs.describe("CliffWalking-v1")
    vector = envs.make(spec.for_evaluation(), 2, seed=0, limit=30)
    vector.reset()
    for _ in range(30):
        step = vector.step(np.zeros(2, np.int64))  # up, for ever
    assert step.truncated.all()
    assert vector.episodes() == [(-30.0, 30), (-30.0, 30)]
