"""dm_env environments behave as Gymnasium ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal import envs
from shoal.errors import UserError

dm_env = pytest.importorskip("dm_env")
specs = dm_env.specs


class Countdown(dm_env.Environment):  # type: ignore[misc]
    """Ends after three steps with the given discount."""

    def __init__(self, discount: float = 0.0, action: Any = None, observation: Any = None) -> None:
        self._discount, self._action, self._observation = discount, action, observation
        self._left = 0
        self.actions: list[Any] = []
        LAST.append(self)

    def observation_spec(self) -> Any:
        return self._observation or OrderedDict(
            left=specs.BoundedArray((), np.int32, 0, 3), place=specs.Array((2,), np.float64)
        )

    def action_spec(self) -> Any:
        return self._action or specs.DiscreteArray(4)

    def reset(self) -> Any:
        self._left = 3
        return dm_env.restart(self._see())

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self._left -= 1
        if self._left:
            return dm_env.transition(reward=1.0, observation=self._see(), discount=0.9)
        return dm_env.TimeStep(dm_env.StepType.LAST, 2.0, self._discount, self._see())

    def _see(self) -> Any:
        return OrderedDict(left=np.int32(self._left), place=np.array([self._left, 0.5]))


LAST: list[Countdown] = []


def make(**options: Any) -> Countdown:
    return Countdown(**options)


@pytest.mark.parametrize(("discount", "terminated"), [(0.0, True), (1.0, False), (0.5, False)])
def test_the_last_discount_tells_termination_from_truncation(discount: float, terminated: bool) -> None:
    vector = envs.make(f"{__name__}:make", 2, seed=0, options={"discount": discount})
    first = vector.reset()
    assert first["left"].tolist() == [3, 3]
    steps = [vector.step(np.zeros(2, np.int64)) for _ in range(4)]
    assert [step.terminated[0] or step.truncated[0] for step in steps] == [False, False, True, False]
    assert steps[2].terminated[0] == terminated
    assert steps[2].observation["left"].tolist() == [0, 0]
    assert steps[3].valid.tolist() == [False, False]
    assert steps[3].observation["left"].tolist() == [3, 3]
    assert vector.episodes() == [(4.0, 3), (4.0, 3)]


def test_specs_become_spaces() -> None:
    found = envs.describe(f"{__name__}:make")
    assert found.action_space == spaces.Discrete(4)
    assert isinstance(found.observation_space, spaces.Dict)
    assert found.observation_space["left"] == spaces.Box(0, 3, (), np.int32)
    assert found.observation_space["place"] == spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize(
    ("spec", "space", "given", "seen"),
    [
        (specs.BoundedArray((2,), np.float64, -1, [1, 2]), None, [[3.0, 3.0]], [1.0, 2.0]),
        (specs.BoundedArray((), np.int32, 2, 4), spaces.Discrete(3), [1], 3),
        (specs.BoundedArray((2,), np.int64, [0, -1], [1, 1]), spaces.MultiDiscrete([2, 3]), [[1, 0]], [1, -1]),
    ],
)
def test_actions_arrive_within_the_specs_bounds(spec: Any, space: Any, given: Any, seen: Any) -> None:
    vector = envs.make(f"{__name__}:make", 1, seed=0, options={"action": spec})
    assert space is None or vector.action_space == space
    vector.reset()
    vector.step(np.array(given))
    assert np.array_equal(LAST[-1].actions[0], seen)


def test_a_spec_without_numbers_is_refused() -> None:
    with pytest.raises(UserError, match="not supported"):
        envs.describe(f"{__name__}:make", {"observation": specs.StringArray(())})
