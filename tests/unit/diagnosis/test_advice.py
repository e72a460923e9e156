"""What is suggested, by kind of actions, speed, rewards and observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.algorithms import a3c, d4pg, impala, ppo, r2d2
from shoal.diagnosis.advice import _support, choose_algorithm, suggest
from shoal.diagnosis.environment import Environment, Seen
from shoal.envs import EnvSpec

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
OPEN = spaces.Box(-np.inf, np.inf, (2,), np.float32)
SPEC = EnvSpec("Some-v0", BOX, spaces.Discrete(2), "classic", None, None)


@pytest.mark.parametrize(
    ("actions", "rate", "share", "kind", "expected"),
    [
        (spaces.Discrete(2), 50_000, 1.0, "classic", "impala"),
        (spaces.Discrete(2), 100, 1.0, "classic", "apex_dqn"),
        (spaces.Discrete(2), 50_000, 0.001, "classic", "apex_dqn"),
        (spaces.Discrete(6), 500, 0.02, "atari", "impala"),
        (spaces.MultiDiscrete([2, 3]), 50_000, 1.0, "other", "impala"),
        (spaces.MultiDiscrete([2, 3]), 100, 1.0, "other", "ppo"),
        (BOX, 50_000, 1.0, "control", "ppo"),
        (BOX, 100, 1.0, "control", "sac"),
        (OPEN, 100, 1.0, "control", "ppo"),
    ],
)
def test_the_algorithm_goes_by_actions_and_by_what_a_step_costs(
    actions: Any, rate: float, share: float, kind: Any, expected: str
) -> None:
    measured = {"steps_per_second": rate, "reward_share": share}
    name, why = choose_algorithm(replace(SPEC, action_space=actions, kind=kind), measured)
    assert name == expected
    assert why


def suggested(cfg: Any, measured: dict[str, Any], largest: float = 1.0, spec: EnvSpec = SPEC, **given: Any) -> Any:
    seen = Seen(
        low={"observation": np.array([-largest])},
        high={"observation": np.array([0.0])},
        dtypes={"observation": np.dtype(np.float32)},
    )
    environment = Environment(spec, lambda finding: None, lambda text: None, seen, measured)
    return suggest("some", "because", cfg, environment, {"env": "Some-v0", **given}, cores=8)


@pytest.mark.parametrize(
    ("cfg", "size", "scale"),
    [
        (impala.Config(), 1.0, None),
        (impala.Config(), 300.0, 0.01),
        (impala.Config(), 0.002, 1000.0),
        (impala.Config(reward_scale=0.1), 20.0, None),
        (impala.Config(reward_clip=1.0), 300.0, None),
        (ppo.Config(normalize_rewards=True), 300.0, None),
        (r2d2.Config(), 300.0, None),
    ],
)
def test_rewards_are_scaled_to_about_one_where_nothing_else_does_it(cfg: Any, size: float, scale: float | None) -> None:
    assert suggested(cfg, {"reward_size": size}).options.get("reward_scale") == scale


@pytest.mark.parametrize(("highest", "scale"), [(1.0, None), (1000.0, 1e-3), (0.012, 100.0)])
def test_small_costs_of_steps_do_not_hide_what_is_won_at_the_end(highest: float, scale: float | None) -> None:
    rewards = {"reward_size": 0.01, "reward_lowest": -0.01, "reward_highest": highest}
    assert suggested(impala.Config(), rewards).options.get("reward_scale") == scale


def test_what_the_user_gave_stays_and_is_talked_of() -> None:
    found = suggested(impala.Config(reward_scale=1.0), {"reward_size": 300.0}, reward_scale=1.0)
    assert "reward_scale" not in found.options
    assert any("your --reward-scale 1: 0.01 would make them about 1" in reason for reason in found.reasons)


def test_large_observations_are_normalised_where_the_algorithm_can() -> None:
    assert suggested(ppo.Config(), {}, 500.0).options["normalize_observations"] is True
    assert "normalize_observations" not in suggested(ppo.Config(), {}, 5.0).options
    assert suggested(impala.Config(), {}, 500.0).options["normalize_observations"] is True
    assert any("--normalize-observations" in reason for reason in suggested(a3c.Config(), {}, 500.0).reasons)


def test_returns_beyond_the_support_of_a_categorical_critic_are_said() -> None:
    wide = {"reward_mean": 10.0, "reward_size": 1.0}
    assert suggested(d4pg.Config(), wide).options["critic"] == "quantile"
    assert "critic" not in suggested(d4pg.Config(), {"reward_mean": 0.1, "reward_size": 1.0}).options


def test_a_slow_environment_is_stepped_on_all_cores_but_one() -> None:
    assert suggested(impala.Config(), {"steps_per_second": 100.0}).options["actors"] == 7
    assert "actors" not in suggested(impala.Config(), {"steps_per_second": 9_000.0}).options


def test_without_a_threshold_a_stop_is_suggested_and_the_command_can_be_pasted() -> None:
    found = suggested(impala.Config(), {}, env_options={"map": "a b"})
    assert found.command == "shoal train some --env Some-v0 --env-option 'map=a b' --stop-steps 1000000"
    assert "stop_steps" not in suggested(impala.Config(), {}, spec=replace(SPEC, reward_threshold=475.0)).options


def test_a_support_is_too_small_only_when_returns_reach_beyond_its_farther_end() -> None:
    cfg = d4pg.Config(support_low=-10.0, support_high=100.0, reward_scale=0.5, gamma=0.9)
    assert _support(cfg, {"reward_mean": 19.0}) == ({}, ""), "95 at the most"
    changes, reason = _support(cfg, {"reward_mean": 22.0})
    assert changes == {"critic": "quantile"}
    assert "reach ± 110, beyond the support from -10 to 100" in reason
