"""Seeds, actions, observations and ownership of arrays, for environments of every supported space."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sample_envs
from gymnasium import spaces

from shoal import envs, tree
from shoal.envs import Envs
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, RESET_REWARD
from shoal.envs.vectorizers import InProcess


def run(spec: str, seed: int, steps: int = 30, count: int = 4, **options: Any) -> np.ndarray[Any, Any]:
    vector = envs.make(spec, count, seed=seed, **options)
    observations = [vector.reset(), *(vector.step(np.full(count, t % 2)).observation for t in range(steps))]
    vector.close()
    return np.stack(observations)


@pytest.mark.parametrize("vectorizer", ["native", "sync", "async"])
def test_the_seed_decides_everything(vectorizer: Any) -> None:
    first = run("CartPole-v1", 7, vectorizer=vectorizer)
    assert np.array_equal(first, run("CartPole-v1", 7, vectorizer=vectorizer))
    assert not np.array_equal(first[0], run("CartPole-v1", 8, vectorizer=vectorizer)[0])


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
def test_environments_differ_from_each_other_and_from_those_of_the_next_seed(vectorizer: Any) -> None:
    starts = np.concatenate([run("CartPole-v1", seed, 0, vectorizer=vectorizer)[0] for seed in range(20)])
    assert len(np.unique(starts[:, 0])) == 80


def test_a_later_reset_goes_on_with_other_episodes_unless_it_is_given_a_seed() -> None:
    vector = envs.make("CartPole-v1", 2, seed=3)
    first, second = vector.reset(), vector.reset()
    assert not np.array_equal(first, second)
    assert np.array_equal(first, vector.reset(seed=3))


def test_a_factory_that_takes_a_seed_gets_another_one_for_every_environment() -> None:
    sample_envs.SEEDS.clear()
    envs.make("sample_envs:seeded", 3, seed=0)
    assert len(set(sample_envs.SEEDS)) == 3
    assert -1 not in sample_envs.SEEDS


@pytest.mark.parametrize(
    "spec", ["CartPole-v1", "Pendulum-v1", "counting_envs:counting", "counting_envs:counting_vector"]
)
@pytest.mark.parametrize("vectorizer", ["auto", "async"])
def test_what_a_step_returned_is_never_overwritten(spec: str, vectorizer: Any) -> None:
    if spec.endswith("counting_vector"):
        vectorizer = "auto"
    vector = envs.make(spec, 3, seed=0, vectorizer=vectorizer)
    vector.reset()
    action = np.stack([vector.action_space.sample() for _ in range(3)])
    kept, copies = [], []
    for _ in range(25):
        step = vector.step(action)
        assert step.observation.flags["C_CONTIGUOUS"]
        kept.append(step)
        copies.append([np.copy(part) for part in step])
    vector.close()
    for step, copied in zip(kept, copies):
        assert all(np.array_equal(part, copy) for part, copy in zip(step, copied))


@pytest.mark.parametrize("vectorizer", ["sync", "async"])
def test_nested_observations_keep_their_structure_and_floats_become_float32(vectorizer: Any) -> None:
    vector = envs.make(
        "sample_envs:sampled", 2, seed=0, options={"observation": sample_envs.NESTED}, vectorizer=vectorizer
    )
    dtypes = {
        "choices": np.int64, "image": np.uint8, "parts/0": np.int64, "parts/1/switches": np.int8, "position": np.float32
    }  # fmt: skip
    for observation in (vector.reset(), vector.step(np.zeros(2, np.int64)).observation):
        flat = tree.flatten(observation)
        assert {name: leaf.dtype for name, leaf in flat.items()} == dtypes
        for number in range(2):
            one = tree.map(lambda leaf, number=number: leaf[number], observation)
            assert vector.observation_space.contains(one)
    vector.close()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 5]),
        spaces.Box(-1, 1, (), np.float32),
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Box(-5, 5, (2,), np.int32),
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32))),
    ],
    ids=str,
)
def test_every_supported_observation_space_arrives_as_the_space_says(space: spaces.Space[Any]) -> None:
    vector = envs.make("sample_envs:sampled", 3, seed=0, options={"observation": space})
    observation = vector.reset()
    for _ in range(3):
        for number in range(3):
            assert vector.observation_space.contains(tree.map(lambda leaf, n=number: np.asarray(leaf[n]), observation))
        observation = vector.step(np.zeros(3, np.int64)).observation


def seen_actions(space: spaces.Space[Any], action: np.ndarray[Any, Any]) -> list[Any]:
    sample_envs.ACTIONS.clear()
    vector = envs.make("sample_envs:sampled", len(action), seed=0, options={"action": space})
    vector.reset()
    vector.step(action)
    return list(sample_envs.ACTIONS)


def test_continuous_actions_are_clipped_to_the_bounds_and_the_policys_array_is_left_alone() -> None:
    space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))
    action = np.array([[5, -3], [0.5, 7]], np.float32)
    seen = seen_actions(space, action)
    assert np.array_equal(seen, [[1, 0], [0.5, 7]])
    assert all(space.contains(one) for one in seen)
    assert action[0, 0] == 5


def test_unbounded_continuous_actions_go_through() -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    seen = seen_actions(space, np.array([[1e6, -3]], np.float32))
    assert seen[0].dtype == np.float64
    assert seen[0].tolist() == [1e6, -3]


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), np.float32),
        (spaces.Box(-9, 9, (2,), np.float32), np.float32),
        (spaces.MultiDiscrete([3, 3]), np.int64),
    ],
    ids=str,
)
def test_an_environment_that_writes_into_its_action_does_not_change_what_is_stored(space: Any, dtype: Any) -> None:
    action = np.ones((2, 2), dtype)
    for seen in seen_actions(space, action):
        seen[:] = 0
    assert np.array_equal(action, np.ones((2, 2)))


def test_discrete_actions_are_counted_from_zero_whatever_the_environment_counts_from() -> None:
    space = spaces.Discrete(3, start=5)
    assert seen_actions(space, np.array([0, 2])) == [5, 7]
    vector = envs.make("sample_envs:sampled", 1, seed=0, options={"action": space})
    assert vector.action_space == spaces.Discrete(3)


def test_multidiscrete_actions_are_counted_from_zero_too() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[1, 10])
    assert np.array_equal(seen_actions(space, np.array([[0, 2], [1, 0]], np.int32)), [[1, 12], [2, 10]])
    vector = envs.make("sample_envs:sampled", 1, seed=0, options={"action": space})
    assert vector.action_space == spaces.MultiDiscrete([2, 3])


def test_sub_processes_end_with_a_killed_parent() -> None:
    code = (
        "import multiprocessing, os, signal; from shoal import envs;"
        "vector = envs.make('CartPole-v1', 3, seed=0, vectorizer='async'); vector.reset();"
        "print(*[child.pid for child in multiprocessing.active_children()], flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 3
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_native_cartpole_gives_what_gymnasium_gives() -> None:
    ours = envs.make("CartPole-v1", 8, seed=0)
    theirs = gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="vector_entry_point")
    observation = ours.reset()
    theirs.reset()
    theirs.unwrapped.state = observation.T.astype(np.float64)
    rng = np.random.default_rng(0)
    for _ in range(8):  # nobody falls so soon: afterwards the two draw different new episodes
        action = rng.integers(0, 2, 8)
        step, expected = ours.step(action), theirs.step(action)
        assert np.allclose(step.observation, expected[0], atol=1e-5)
        assert np.array_equal(step.reward, expected[1])
        assert step.valid.all()


def test_a_game_that_ends_with_the_row_that_begins_a_life_begins_again_with_the_next() -> None:
    class Lives(gymnasium.Env[Any, Any]):
        """The row after its first life ends the game, with a reward."""

        observation_space = spaces.Box(0, 9, (1,), np.float32)
        action_space = spaces.Discrete(2)
        resets = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.resets += 1
            told = {RESET_REWARD: 4.0, ENDED_AT_RESET: True} if self.resets == 2 else {}
            return np.full(1, self.resets, np.float32), told

        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 1.0, True, False, {LIFE_LOST: True} if self.resets == 1 else {}

    vector = Envs(InProcess([Lives], "lives"), "lives", 0)
    vector.reset()
    rows = [vector.step(np.zeros(1, np.int64)) for _ in range(4)]
    assert [row.valid.tolist() for row in rows] == [[True], [False], [False], [True]]
    assert [float(row.observation[0, 0]) for row in rows] == [0.0, 2.0, 3.0, 0.0]
    assert [(episode.return_, episode.length) for episode in vector.episodes()] == [(5.0, 2), (1.0, 1)]


class Short(gymnasium.Env[Any, Any]):
    """Episodes of so many steps, each worth 1; observes the time."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length, self.time = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time == self.length, False, {}


def test_an_episode_that_has_ended_is_not_open_and_a_reset_begins_all_of_them() -> None:
    vector = Envs(InProcess([partial(Short, 1), partial(Short, 3)], "short"), "short", 0)
    vector.reset()
    assert vector.open_episodes() == 2
    vector.step(np.zeros(2, np.int64))
    assert vector.open_episodes() == 1
    vector.reset()
    assert vector.open_episodes() == 2
    row = vector.step(np.zeros(2, np.int64))
    assert (row.valid.tolist(), row.reward.tolist()) == ([True, True], [1.0, 1.0])
    assert row.observation.ravel().tolist() == [1.0, 1.0]


def test_a_limit_counts_the_steps_of_an_episode_and_not_the_row_that_resets() -> None:
    made = InProcess([partial(Short, 2)], "short")
    vector = Envs(made, "short", 0, limit=3)
    vector.reset()
    rows = [vector.step(np.zeros(1, np.int64)) for _ in range(9)]
    assert [bool(row.terminated[0]) for row in rows] == [False, True, False] * 3
    assert not any(row.truncated[0] for row in rows)
