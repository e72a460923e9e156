"""No stored transition crosses an episode, none is lost and none repeated, from the environment to the learner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from counting_nodes import counting_program
from starting import Start

from counting_envs import episode_end, episode_length, reward_of
from shoal.program import Handle
from shoal.replay import n_step, rollout

Data = dict[str, npt.NDArray[Any]]
Place = tuple[int, int, int]  # stream, episode, step
ITEMS = 16  # per sample
EPISODES = 20  # of every environment
ENVIRONMENTS = [  # name, environments per actor, actors
    ("counting_envs:counting", 3, 2),
    ("counting_envs:counting_vector", 4, 1),  # numbers its streams from 0: two actors would not be told apart
]


def samples(
    start: Start, environment: tuple[str, int, int], pattern: Any, rows: int, seen: Counter[Place]
) -> Iterator[Data]:
    """The batches that the queue gives, until enough of every environment has been seen."""
    program, replay = counting_program(*environment, pattern, rows)
    run = start(program, seed=11)
    run.client(Handle("weights")).publish({"nothing": np.zeros(1, np.float32)}, 1)
    reader = run.client(replay)
    streams = environment[1] * environment[2]
    for _ in range(1000):
        yield reader.sample("items", ITEMS).data
        last = last_episodes(seen)
        if len(last) == streams and min(last.values()) >= EPISODES:
            return
    raise AssertionError(f"not every environment came far enough: {last}")


def place(observation: npt.NDArray[Any]) -> Place:
    stream, episode, step = (int(part) for part in observation)
    return stream, episode, step


def ends_terminated(where: Place) -> bool:
    stream, episode, step = where
    return step == episode_length(stream, episode) - 1 and episode_end(stream, episode) == "terminated"


def last_episodes(seen: Counter[Place]) -> dict[int, int]:
    """The last episode that was seen of each stream."""
    last: dict[int, int] = {}
    for stream, episode, _ in seen:
        last[stream] = max(last.get(stream, 0), episode)
    return last


def assert_each_once(seen: Counter[Place]) -> None:
    """Every step of every episode, from the first to the last but one that was seen, exactly once."""
    assert set(seen.values()) == {1}, "a transition was stored twice"
    last = last_episodes(seen)
    expected = {
        (stream, episode, step)
        for stream, until in last.items()
        for episode in range(until)
        for step in range(episode_length(stream, episode))
    }
    assert expected <= set(seen), f"lost: {sorted(expected - set(seen))}"
    assert {where for where in seen if where not in expected} <= {
        (stream, until, step) for stream, until in last.items() for step in range(episode_length(stream, until))
    }


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["sync", "native"])
def test_time_slices_hold_every_transition_once_and_none_across_an_episode(
    start: Start, environment: tuple[str, int, int]
) -> None:
    seen: Counter[Place] = Counter()
    for data in samples(start, environment, rollout(4), 4, seen):
        observation, valid = data["observation"], data["valid"]
        assert observation.shape[:2] == (5, ITEMS)
        for item in range(ITEMS):
            for row in range(4):
                stream, episode, step = here = place(observation[row, item])
                after = place(observation[row + 1, item])
                if valid[row, item]:
                    seen[here] += 1
                    assert after == (stream, episode, step + 1)
                    assert data["reward"][row, item] == reward_of(episode, step)
                    assert data["terminated"][row, item] == ends_terminated(here)
                else:  # the final observation, and then the next episode's first
                    assert step == episode_length(stream, episode)
                    assert after == (stream, episode + 1, 0)
                    assert data["reward"][row, item] == 0.0
                    assert not data["terminated"][row, item]
    assert_each_once(seen)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["sync", "native"])
def test_n_step_transitions_end_with_their_episode(start: Start, environment: tuple[str, int, int]) -> None:
    discount, n = 0.5, 3
    seen: Counter[Place] = Counter()
    for data in samples(start, environment, n_step(n, discount), 6, seen):
        for item in range(ITEMS):
            stream, episode, step = here = place(data["observation"][item])
            seen[here] += 1
            taken = min(n, episode_length(stream, episode) - step)
            assert place(data["next_observation"][item]) == (stream, episode, step + taken)
            reward = sum(discount**index * reward_of(episode, step + index) for index in range(taken))
            assert data["reward"][item] == pytest.approx(reward)
            dead = ends_terminated((stream, episode, step + taken - 1))
            assert data["discount"][item] == pytest.approx(0.0 if dead else discount**taken)
    assert_each_once(seen)
