"""`shoal doctor` and `shoal bench limits` on vectors of tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.algorithms import ppo, td3
from shoal.bench.limits import measure_limits
from shoal.diagnosis.doctor import doctor
from shoal.envs.torch_tasks.pendulum import Pendulums
from shoal.experiment.environments import describe_env, fit


def forgetful(count: int, seed: int, device: str) -> Any:
    class Forgetful(Pendulums):
        def step(self, actions: torch.Tensor, /) -> Any:
            return *super().step(actions)[:4], {}

    return Forgetful(count, seed, device, "same_step", 50)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_the_doctor_says_where_it_lives_and_when_it_resets(mode: str) -> None:
    found = doctor("torch/Pendulum-v1", env_options={"autoreset": mode, "max_episode_steps": 30}, algorithm="ppo")
    assert not found.faults
    told = {finding.about: finding.text for finding in found.findings}
    assert told["device"].startswith("a vector of tensors on cpu, which resets")
    assert f"a vector with {mode.upper()} autoreset" in told["episodes"]
    assert (found.measured["device"], found.measured["autoreset"]) == ("cpu", mode)
    assert found.measured["loses_finals"] is False


def test_the_doctor_warns_of_final_observations_that_are_lost() -> None:
    found = doctor(forgetful, algorithm="ppo")
    (warning,) = [finding for finding in found.findings if (finding.about, finding.level) == ("device", "warning")]
    assert "loses final observations" in warning.text
    assert warning.remedy is not None
    assert "final_obs" in warning.remedy


@pytest.mark.parametrize(
    ("page", "options"), [(ppo, {"unroll": 4}), (td3, {"batch": 8, "samples_per_insert": 2.0, "learning_starts": 16})]
)
def test_limits_are_of_one_core_for_each_learner(page: Any, options: dict[str, Any]) -> None:
    cfg = page.Config(env="torch/Pendulum-v1", envs_per_actor=8, **options)
    cfg, env = fit(cfg, describe_env(cfg), "local")
    limits = measure_limits(page, cfg, env, seconds=0.05)
    assert (limits.cores, limits.environments, limits.inference_batch) == (1, 8, 8)
    assert limits.training_batch == (32 if page is ppo else 8)
    assert 0 < limits.ceiling(0.01) < limits.environment
