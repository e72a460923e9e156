"""What the replay family refuses: one sentence that names the option, before anything is started."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from shoal import config, envs
from shoal.errors import UserError
from shoal.loops.wiring import Settings

ENVS = {"apex_dqn": "CartPole-v1", "r2d2": "CartPole-v1"} | dict.fromkeys(
    ("apex_dpg", "d4pg", "sac", "td3"), "Pendulum-v1"
)


def start(name: str, values: dict[str, Any]) -> None:
    """As far as a training comes before its nodes are started."""
    algorithm = importlib.import_module(f"shoal.algorithms.{name}")
    cfg = algorithm.Config(env=ENVS[name], **values)
    config.validate(cfg)
    spec = envs.describe(cfg.env)
    algorithm.make_policy(cfg, spec, 0)
    algorithm.program(cfg, spec, Settings(evaluate=False))


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"learning_starts": 0}, "--learning-starts 0 is too small"),
        ({"samples_per_insert": -1.0}, "--samples-per-insert -1.0 is too small"),
        ({"priority_exponent": -0.5}, "--priority-exponent -0.5 is too small"),
        ({"importance_exponent": -0.5}, "--importance-exponent -0.5 is too small"),
        ({"inference_wait": -1.0}, "--inference-wait -1.0 is out of range"),
        ({"capacity": 10}, "--capacity 10 can never hold --batch"),
        ({"capacity": 600, "batch": 2, "learning_starts": 700}, "--capacity 600 can never hold --learning-starts 700"),
        ({"shards": 2}, "--shards 2 cannot be filled by --actors 1"),
    ],
)
def test_of_every_algorithm(name: str, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        start(name, values)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("apex_dqn", {"quantiles": -1}, "--quantiles -1 is too small"),
        ("apex_dqn", {"kappa": -1.0}, "--kappa -1.0 is too small"),
        ("apex_dqn", {"stream": -1}, "--stream -1 is too small"),
        ("apex_dqn", {"hidden": (64, 0)}, "--hidden 64 0 has a layer without a unit"),
        ("apex_dqn", {"ladder_base": 1.5}, "--ladder-base 1.5 is out of range"),
        ("apex_dqn", {"ladder_exponent": -1.0}, "--ladder-exponent -1.0 is too small"),
        ("apex_dqn", {"reward_scale": 0.0}, "--reward-scale 0.0 is too small"),
        ("apex_dqn", {"kappa": 0.0}, "--kappa 0.0 is too small: give a number above 0"),
        ("apex_dqn", {"huber": -1.0}, "--huber -1.0 is too small"),
        ("td3", {"policy_delay": 0}, "--policy-delay 0 is too small"),
        ("apex_dpg", {"critic_hidden": (0,)}, "--critic-hidden 0 has a layer without a unit"),
        ("d4pg", {"critic": "quantile", "kappa": 0.0}, "--kappa 0.0 is too small: give a number above 0"),
        ("d4pg", {"critic": "quantile", "quantiles": 0}, "--quantiles 0 is too small"),
        ("d4pg", {"support_low": 5.0, "support_high": 5.0}, "--support-low 5 must lie below --support-high 5"),
        ("r2d2", {"lstm": 0}, "--lstm 0 leaves r2d2 without a memory"),
        ("r2d2", {"period": 31}, "--period 31 leaves gaps between sequences"),
    ],
)
def test_of_one_algorithm(name: str, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        start(name, values)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("name", ["apex_dpg", "d4pg"])
def test_acting_without_noise_is_allowed(name: str) -> None:
    start(name, {"noise": 0.0, "noise_smallest": 0.0})
