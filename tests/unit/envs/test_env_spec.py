"""A spec makes the environment it describes, with its options, and another one for the evaluator."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import sample_envs
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import VectorEnv

from counting_envs import Counting
from shoal import envs
from shoal.errors import UserError


def lengths(vector: envs.Envs, steps: int = 30) -> set[int]:
    vector.reset()
    for _ in range(steps):
        vector.step(np.zeros(vector.count, np.int64))
    vector.close()
    return {episode.length for episode in vector.episodes()}


@pytest.mark.parametrize("vectorizer", ["native", "sync", "async"])
def test_a_spec_makes_environments_with_its_options_and_its_vectorizer(vectorizer: Any) -> None:
    found = envs.describe("CartPole-v1", {"max_episode_steps": 4}, vectorizer)
    assert (found.options, found.vectorizer, found.max_episode_steps) == ({"max_episode_steps": 4}, vectorizer, 4)
    there = pickle.loads(pickle.dumps(found))
    assert there == found
    assert lengths(envs.make(there, 2, seed=0)) == {4}
    assert lengths(envs.make(there, 2, seed=0, options={"max_episode_steps": 5})) == {5}


def test_the_evaluator_has_options_of_its_own() -> None:
    found = envs.describe(
        Counting, {"lengths": (3,), "ends": ("terminated",)}, evaluation_options={"lengths": (6,)}
    ).for_evaluation()
    assert found.options == {"lengths": (6,), "ends": ("terminated",)}
    assert found.env is Counting
    assert lengths(envs.make(found, 2, seed=0)) == {6}


def test_the_evaluators_version_must_have_the_same_spaces() -> None:
    with pytest.raises(UserError, match=r"other spaces with the evaluator's options \{'actions': 5\}.*could not act"):
        envs.describe("counting_envs:counting", evaluation_options={"actions": 5})


@pytest.mark.parametrize(
    ("env", "options", "says"),
    [
        ("CartPole-v1", {"wings": 3}, "has no option 'wings'"),
        ("CartPole-v1", {"max_episode_steps": 0}, "CartPole-v1: the option max_episode_steps=0 is no such value; give"),
        ("Acrobot-v1", {"max_episode_steps": "many"}, "max_episode_steps='many' is no such value; give a whole number"),
        ("counting_envs:counting", {"lengths": 3}, "could not be made with the options {'lengths': 3}: TypeError"),
        ("counting_envs:counting", {"speed": 3}, "could not be made with the options {'speed': 3}: TypeError"),
        ("CartPole-v1", {1: 2}, "values by name"),
        ("CartPole-v1", ["wings"], "values by name"),
    ],
)
def test_options_that_do_not_fit_are_told_in_one_sentence(env: str, options: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        envs.describe(env, options)
    assert "\n" not in str(caught.value)


def cartpole(**options: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **options)


def cartpoles(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", max_episode_steps=9)


@pytest.mark.parametrize(
    ("env", "options", "limit", "threshold"),
    [
        (cartpole, {}, 500, 475.0),
        (cartpole, {"max_episode_steps": 50}, 50, 475.0),
        (cartpole, {"max_episode_steps": -1}, None, 475.0),
        (cartpoles, {}, 9, 475.0),
        (CartPoleEnv, {}, None, None),
        ("CliffWalking-v1", {}, None, None),
    ],
)
def test_limit_and_threshold_are_those_of_the_environment_that_is_made(
    env: Any, options: Any, limit: int | None, threshold: float | None
) -> None:
    found = envs.describe(env, options)
    assert (found.max_episode_steps, found.reward_threshold) == (limit, threshold)


def test_atari_counts_frames_and_is_known_by_its_code_not_by_its_pictures() -> None:
    pytest.importorskip("ale_py")
    found = envs.describe("ALE/Pong-v5", vectorizer="sync")
    assert (found.kind, found.max_episode_steps) == ("atari", 27_000)
    factory = functools.partial(pong, max_num_frames_per_episode=80, frameskip=(2, 5))
    assert (envs.describe(factory).kind, envs.describe(factory).max_episode_steps) == ("atari", 40)
    image = envs.describe(sample_envs.sampled, {"observation": spaces.Box(0, 255, (84, 84, 4), np.uint8)})
    assert image.kind == "pixels"


def pong(**options: Any) -> gymnasium.Env[Any, Any]:
    import ale_py  # noqa: F401 - registers the id

    return gymnasium.make("ALE/Pong-v5", **options)


def test_an_id_that_the_users_program_registered_is_known_to_other_processes() -> None:
    gymnasium.register("OfANotebook-v0", Counting, max_episode_steps=2)
    try:
        sent = cloudpickle.dumps(envs.describe("OfANotebook-v0"))
    finally:
        del gymnasium.registry["OfANotebook-v0"]
    try:
        assert lengths(envs.make(pickle.loads(sent), 1, seed=0)) <= {1, 2}
    finally:
        del gymnasium.registry["OfANotebook-v0"]
    assert envs.describe("CartPole-v1").registered is None


def test_the_evaluator_cuts_what_has_no_time_limit_and_says_so() -> None:
    endless = envs.describe("CliffWalking-v1")
    assert endless.evaluation_limit == endless.for_evaluation().limit == envs.EVALUATION_LIMIT == 27_000
    assert endless.evaluation_note == (
        "CliffWalking-v1 states no time limit: evaluation ends its episodes after 27,000 steps and counts their return "
        "so far."
    )
    limited = envs.describe("CartPole-v1")
    assert (limited.evaluation_limit, limited.evaluation_note) == (500, None)
    shorter = envs.describe("CartPole-v1", evaluation_options={"max_episode_steps": 9})
    assert (shorter.max_episode_steps, shorter.evaluation_limit) == (500, 9)


def test_names_of_environments() -> None:
    assert envs.name_of("CartPole-v1") == "CartPole-v1"
    assert envs.name_of(cartpole) == "cartpole"
    assert envs.name_of(functools.partial(cartpole, max_episode_steps=3)) == "cartpole"
    assert envs.name_of(Counting) == "Counting"
