"""Environments of other packages behind the same interface: EnvPool, and dm_control through shimmy's registration."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from shoal import envs
from shoal.envs.describing import describe_here
from shoal.errors import UserError

WALKER = "shimmy:dm_control/walker-walk-v0"


@pytest.fixture
def envpool():
    return pytest.importorskip("envpool", reason="EnvPool takes 700 MB: pip install 'shoal[envpool]' to run this")


@pytest.mark.usefixtures("envpool")
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_an_envpool_task_is_a_vector_with_its_limit_and_threshold():
    found = describe_here("envpool:CartPole-v1", None, "auto", None)
    assert (found.kind, found.max_episode_steps, found.reward_threshold) == ("classic", 500, 475.0)
    vector = envs.make(found, 3, seed=1)
    vector.reset()
    ends, valid = 0, 0
    for _ in range(60):
        outcome = vector.step(np.ones(3, np.int64))
        ends += int(outcome.terminated.sum())
        valid += int(outcome.valid.sum())
    vector.close()
    assert ends > 9  # pushed to one side it falls within some ten steps
    assert valid == 180 - ends + int(outcome.terminated.sum())  # the row after each end is a reset


@pytest.mark.usefixtures("envpool")
def test_what_envpool_does_not_have_is_said():
    with pytest.raises(UserError, match=r"^EnvPool has no environment CartPoole-v1\. Did you mean CartPole-v1"):
        envs.make("envpool:CartPoole-v1", 2, seed=1)
    with pytest.raises(UserError, match=r"^envpool:CartPole-v1 has no option 'reward_threshhold'\. Did you mean"):
        envs.make("envpool:CartPole-v1", 2, seed=1, options={"reward_threshhold": 3})


def test_without_envpool_its_line_of_pip_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install 'shoal\[envpool\]'"):
        envs.make("envpool:CartPole-v1", 2, seed=1)


@pytest.mark.filterwarnings("ignore")  # of glfw, which finds no screen
def test_dm_control_through_shimmy():
    found = describe_here(WALKER, None, "auto", None)
    assert found.kind == "control"
    assert sorted(found.observation_space) == ["height", "orientations", "velocity"]
    vector = envs.make(found, 2, seed=1)
    first = vector.reset()
    outcome = vector.step(np.zeros((2, 6), np.float32))
    vector.close()
    assert first["orientations"].shape == (2, 14)
    assert outcome.observation["velocity"].shape == (2, 9)
    assert (outcome.reward > 0.0).all()
