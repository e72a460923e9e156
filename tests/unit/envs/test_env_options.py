"""Options of environments: given, typed, refused in one sentence, and others for the evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from shoal import envs
from shoal.algorithms import apex_dpg, d4pg, ppo
from shoal.arguments.words import read
from shoal.config import validate
from shoal.errors import UserError
from shoal.experiment.environments import describe_env


def stretched(size: int = 3, name: str = "plain", fast: bool = False) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=100 * size)


def test_options_are_typed_as_literals_and_may_be_given_again() -> None:
    given = ["--env-option=continuous=true", "--env-option", "gravity=-9.5", "--env-option", "map=4x4"]
    words = [*given, "--env-option", "size=(2,3)"]
    typed = read([*words, "--env-option", "gravity=-1"], [ppo.Config], "shoal train ppo")
    cfg = typed.make(ppo.Config)
    assert cfg.env_options == {"continuous": True, "gravity": -1, "map": "4x4", "size": (2, 3)}
    validate(cfg)


@pytest.mark.parametrize("word", ["gravity", "=3", "two words=3"])
def test_what_is_no_key_and_value_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=r"--env-option .* give key=value"):
        read(["--env-option", word], [ppo.Config], "shoal train ppo")


@pytest.mark.parametrize("page", [ppo, d4pg, apex_dpg])
def test_the_continuous_lander_keeps_the_threshold_and_limit_of_its_registration(page: Any) -> None:
    pytest.importorskip("Box2D")
    found = describe_env(page.Config(env="LunarLander-v3", env_options={"continuous": True}))
    assert isinstance(found.action_space, spaces.Box)
    assert (found.reward_threshold, found.max_episode_steps, found.kind) == (200, 1000, "control")
    page.make_policy(page.Config(), found, 0)


@pytest.mark.parametrize(
    ("env", "options", "sentence"),
    [
        ("CartPole-v1", {"sutton_barto_rewards": True}, "'sutton_barto_rewards'. Did you mean sutton_barto_reward?"),
        ("CartPole-v1", {"sutton_barto_reward": 3}, "sutton_barto_reward=3 is no such value; give True or False"),
        ("Pendulum-v1", {"g": "strong"}, "g='strong' is no such value; give a number"),
        ("Pendulum-v1", {"zzz": 1}, "no option 'zzz'. It takes g, max_episode_steps, render_mode"),
        ("FrozenLake-v1", {"map_name": 4}, "map_name=4 is no such value; give text"),
        ("CartPole-v1", {"num_envs": 3}, "the option 'num_envs' is not yours to give: give --envs-per-actor."),
        ("Pendulum-v1", {"id": 3}, "the option 'id' is not yours to give: name the environment with --env."),
        ("ALE/Pong-v5", {"noop_max": 1.5}, "the option noop_max=1.5 is no such value; give a whole number."),
        ("ALE/Pong-v5", {"noop_max": None}, "the option noop_max=None is no such value; give a whole number."),
        ("ALE/Pong-v5", {"grayscale": None}, "the option grayscale=None is no such value; give True or False."),
        (stretched, {"sise": 3}, "stretched has no option 'sise'. Did you mean size?"),
        (stretched, {"fast": "yes"}, "the option fast='yes' is no such value; give True or False"),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence_with_its_name(env: Any, options: Any, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        envs.describe(env, options)
    assert sentence in str(error.value)


def test_an_option_that_only_a_base_class_knows_is_suggested_too() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(UserError, match=r"no option 'frameskip'. Did you mean frame_skip\?"):
        envs.describe("HalfCheetah-v5", {"frameskip": 2})


def test_the_evaluator_has_its_own_options_and_cap() -> None:
    cfg = ppo.Config(env=stretched, env_options={"size": 1}, eval_env_options={"size": 2}, eval_limit=150)
    found = describe_env(cfg)
    assert found.max_episode_steps == 100
    evaluation = found.for_evaluation()
    assert (evaluation.options, evaluation.limit) == ({"size": 2}, 150)
    assert "--eval-limit 150" in (found.evaluation_note or "")
    vector = envs.make(evaluation, 1, seed=0)
    vector.close()


def test_a_cap_that_changes_nothing_is_not_spoken_of() -> None:
    assert envs.describe("CartPole-v1", evaluation_limit=500).evaluation_note is None


def test_options_come_back_from_a_run_directory(tmp_path: Path) -> None:
    from shoal.config import from_record

    cfg = ppo.Config(env_options={"gravity": 3})
    assert from_record(ppo.Config, {"env_options": {"gravity": 3}}) == cfg
