"""An environment that breaks its own promise is stopped with one sentence that says what, where and which value."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sample_envs
from gymnasium import spaces

from shoal import envs
from shoal.envs.check import check_observation
from shoal.envs.faults import what_was_raised


def run(vector: envs.Envs, steps: int) -> None:
    vector.reset()
    for _ in range(steps):
        vector.step(np.zeros(2, np.int64))


def step_until_fault(options: dict[str, Any], factory: str = "Broken", steps: int = 5) -> str:
    vector = envs.make(f"sample_envs:{factory}", 2, seed=0, options=options)
    with pytest.raises(envs.EnvFault) as caught:
        run(vector, steps)
    assert "\n" not in str(caught.value)
    assert f"sample_envs:{factory}" in str(caught.value)
    return str(caught.value)


def open_valve() -> None:
    raise ValueError("no such valve.")


def test_the_place_that_is_named_is_the_innermost_one_of_the_users_own_code() -> None:
    def step() -> None:
        open_valve()

    def read() -> None:
        json.loads("{")  # which raises in the standard library

    for broken, innermost in ((step, open_valve), (read, read)):
        with pytest.raises(ValueError) as caught:
            broken()
        line = innermost.__code__.co_firstlineno + 1
        assert what_was_raised(caught.value).endswith(f"(test_env_faults.py, line {line})")


def spoil(value: float) -> Any:
    def change(observation: Any, reward: float) -> tuple[Any, float]:
        observation[1] = value
        return observation, reward

    return change


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_a_fault_at_any_step(value: float) -> None:
    message = step_until_fault({"change": spoil(value), "at": 4})
    assert f"'observation' of environment number 0 is {value} at [1]" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_is_a_fault_at_any_step(value: float) -> None:
    message = step_until_fault({"change": lambda observation, _: (observation, value), "at": 4})
    assert f"'reward' of environment number 0 is {value}" in message


def test_a_fault_inside_a_nested_observation_is_named_with_its_path() -> None:
    def change(observation: Any, reward: float) -> tuple[Any, float]:
        observation["position"][0] = np.nan
        return observation, reward

    message = step_until_fault({"change": change, "observation": sample_envs.NESTED})
    assert "'observation/position' of environment number 0 is nan at [0]" in message


def test_large_finite_numbers_are_no_fault() -> None:
    options = {"change": lambda observation, _: (observation * 0 + np.float32(3e38), 3e38), "at": 1}
    vector = envs.make("sample_envs:Broken", 2, seed=0, options=options)
    vector.reset()
    assert vector.step(np.zeros(2, np.int64)).reward[0] == np.float32(3e38)


@pytest.mark.parametrize(
    ("value", "space", "says"),
    [
        (np.zeros(4, np.float32), sample_envs.BOX, "'observation' has shape (4,), but its space says (3,)"),
        (np.float32(0), sample_envs.BOX, "'observation' has shape (), but its space says (3,)"),
        (np.zeros(2), spaces.Box(0, 255, (2,), np.uint8), "'observation' has dtype float64, but its space says uint8"),
        (np.zeros(2, np.int64), spaces.Box(0, 255, (2,), np.uint8), "'observation' has dtype int64"),
        (None, sample_envs.BOX, "'observation' has shape (), but"),
        (7, spaces.Discrete(5), "'observation' is 7, which is outside of its space Discrete(5)"),
        ({"a": 1}, spaces.Dict({"b": spaces.Discrete(2)}), "['observation/a'], but its space has ['observation/b']"),
    ],
)
def test_a_first_observation_unlike_its_space_is_a_fault(value: Any, space: Any, says: str) -> None:
    assert says in step_until_fault({"value": value, "observation": space}, "BrokenReset")


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (spaces.Discrete(5), [0, 4], [-1, 5]),
        (spaces.Discrete(5, start=2), [2, 6], [1, 7]),
        (spaces.MultiDiscrete([3, 2]), [[0, 0], [2, 1]], [[0, -1], [3, 0], [0, 2]]),
    ],
)
def test_a_discrete_observation_ends_one_before_its_count(space: Any, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        check_observation(value, space, "env")
    for value in outside:
        with pytest.raises(envs.EnvFault) as caught:
            check_observation(value, space, "env")
        assert str(caught.value) == f"env: 'observation' is {value}, which is outside of its space {space}."


def test_float64_where_float32_was_promised_is_converted() -> None:
    vector = envs.make("sample_envs:BrokenReset", 2, seed=0, options={"value": np.zeros(3)})
    assert vector.reset().dtype == np.float32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda observation, reward: (observation[:2], reward),
            "'observation' has shape (2,), but its space says (3,)",
        ),
        (
            lambda observation, reward: (observation, np.array([reward])),
            "'reward' is array([1.]), but must be one number",
        ),
        (lambda observation, reward: (observation, None), "'reward' is None, but must be one number"),
    ],
)
def test_a_first_step_unlike_its_promise_is_a_fault(change: Any, says: str) -> None:
    assert says in step_until_fault({"change": change, "at": 1})


@pytest.mark.parametrize(
    ("change", "space", "says"),
    [
        (lambda o, r: (o[:1], r), sample_envs.BOX, "'observation' has shape (1,), but its space says (3,)"),
        (lambda o, r: (o[0], r), sample_envs.BOX, "'observation' has shape (), but its space says (3,)"),
        (lambda o, r: (o, None), sample_envs.BOX, "'reward' of environment number 0 is nan"),
        (lambda o, r: (o, "much"), sample_envs.BOX, "'reward' is 'much', but must be one number"),
        (
            lambda o, r: ({**o, "position": o["position"][:1]}, r),
            sample_envs.NESTED,
            "'observation/position' has shape (1,), but its space says (2,)",
        ),
        (lambda o, r: ({"image": o["image"]}, r), sample_envs.NESTED, "the observation has the parts"),
    ],
)
def test_a_later_step_unlike_its_promise_is_a_fault_and_not_spread_over_the_row(
    change: Any, space: Any, says: str
) -> None:
    assert says in step_until_fault({"change": change, "at": 4, "observation": space})


def test_a_vector_whose_observations_lose_their_shape_later_is_a_fault() -> None:
    vector = envs.make("sample_envs:Shrinking", 2, seed=0)
    vector.reset()
    vector.step(np.zeros(2, np.int64))
    with pytest.raises(envs.EnvFault, match=r"'observation' has shape \(2, 1\), but its space says \(2, 3\)"):
        vector.step(np.zeros(2, np.int64))


def test_what_an_environment_raises_is_passed_on() -> None:
    vector = envs.make("counting_envs:counting", 2, seed=0, options={"fail_at": 3})
    with pytest.raises(RuntimeError, match="told to fail at step 3"):
        run(vector, 5)
