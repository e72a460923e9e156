"""Vectors of tensors of other libraries: what follows a truncated step is worth its final observation.

Isaac Lab, rsl_rl and ManiSkill need a GPU, or cannot be installed here: fakes keep to their calling conventions. gymnax
and brax pin another Gymnasium: their tests run in an environment that has them (docs/gpu-simulators.md).
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from shoal import envs
from shoal.acting.ring import Ring
from shoal.acting.rollouts import Rollouts
from shoal.algorithms import ppo
from shoal.envs.adapters import IsaacLab, ManiSkill, RslRl, as_tensors
from shoal.envs.hosted import OnHost
from shoal.envs.tensors import TensorEnvs
from shoal.functional.gae import gae

COUNT, LENGTH, GAMMA = 4, 3, 0.5
OBSERVATION, ACTION = spaces.Box(-100.0, 100.0, (1,)), spaces.Box(-1.0, 1.0, (1,))


class Clock:
    """Counts its steps from 10 · (number of the episode + 1) on, and is cut after three: every step gives 1."""

    def __init__(self) -> None:
        self.episode, self.age = torch.zeros(2, COUNT)

    def see(self) -> Tensor:
        return (10.0 * (self.episode + 1) + self.age).unsqueeze(1)

    def tick(self) -> tuple[Tensor, Tensor]:
        """Final observations, and where the episode was cut; the next one has begun there."""
        self.age = self.age + 1
        final, cut = self.see(), self.age >= LENGTH
        self.episode, self.age = self.episode + cut.float(), self.age * ~cut
        return final, cut


class FakeIsaac(gymnasium.Env[Any, Any]):
    """As ManagerBasedRLEnv: groups of observations, flags in the same memory with every step, no vector's class."""

    def __init__(self, finals: bool) -> None:
        self.num_envs, self.device, self.max_episode_length = COUNT, "cpu", LENGTH
        self.single_observation_space = spaces.Dict({"policy": OBSERVATION})
        self.single_action_space, self.finals = ACTION, finals
        self.observation_space = self.action_space = ACTION
        self.flags = torch.zeros(2, COUNT, dtype=torch.bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.clock = Clock()
        return {"policy": self.clock.see(), "critic": torch.zeros(COUNT, 7)}, {}

    def step(self, action: Tensor) -> Any:
        final, cut = self.clock.tick()
        self.flags[1] = cut
        extras = {"final_obs": {"policy": final}} if self.finals else {}
        return {"policy": self.clock.see()}, torch.ones(COUNT), self.flags[0], self.flags[1], extras


class FakeRslRl:
    """As rsl_rl's VecEnv: a mapping of observations, dones as integers, time-outs among the extras, inference mode."""

    def __init__(self) -> None:
        self.num_envs, self.num_actions, self.device = COUNT, 1, "cpu"
        self.max_episode_length, self.episode_length_buf = LENGTH, torch.zeros(COUNT)
        self.clock = Clock()

    def get_observations(self) -> dict[str, Tensor]:
        return {"policy": self.clock.see()}

    @torch.inference_mode()
    def step(self, actions: Tensor) -> Any:
        _, cut = self.clock.tick()
        return {"policy": self.clock.see() + 0.0}, torch.ones(COUNT), cut.long(), {"time_outs": cut + 0}


class OfGymnasium(VectorEnv[Any, Any, Any]):
    """A vector of Gymnasium's with tensors, which says when it resets."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self) -> None:
        self.num_envs, self.device = COUNT, torch.device("cpu")
        self.single_observation_space, self.single_action_space = OBSERVATION, ACTION

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.clock = Clock()
        return self.clock.see(), {}

    def step(self, actions: Tensor) -> Any:
        final, cut = self.clock.tick()
        infos = {"final_observation": final, "_final_info": cut} if cut.any() else {}
        return self.clock.see(), torch.ones(COUNT), torch.zeros_like(cut), cut, infos


class FakeManiSkill(OfGymnasium):
    """As ManiSkillVectorEnv: no autoreset in its metadata, final observations only in steps with an end."""

    __module__ = "mani_skill.vector.wrappers.gymnasium"
    metadata = {}  # noqa: RUF012


class NextStep(OfGymnasium):
    """One that resets in a step of its own."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def reset(self, **given: Any) -> Any:
        self.again = torch.zeros(COUNT, dtype=torch.bool)
        return super().reset(**given)

    def step(self, actions: Tensor) -> Any:
        if self.again.all():
            self.again = ~self.again
            nothing = torch.zeros(COUNT, dtype=torch.bool)
            return self.clock.see(), torch.zeros(COUNT), nothing, nothing, {}
        final, self.again = self.clock.tick()
        seen = torch.where(self.again.unsqueeze(1), final, self.clock.see())
        return seen, torch.ones(COUNT), torch.zeros_like(self.again), self.again, {}


CASES: dict[str, tuple[Any, type | None, bool]] = {  # what makes it, the adapter, whether it has final observations
    "isaac lab, final observations": (functools.partial(FakeIsaac, True), IsaacLab, True),
    "isaac lab": (functools.partial(FakeIsaac, False), IsaacLab, False),
    "rsl_rl": (FakeRslRl, RslRl, False),
    "maniskill": (FakeManiSkill, ManiSkill, True),
    "gymnasium, same step": (OfGymnasium, None, True),
    "gymnasium, next step": (NextStep, None, True),
}


def adapted(case: str) -> Any:
    make, adapter, _ = CASES[case]
    made = make()
    found = as_tensors(made)
    assert found is not None
    assert type(found) is adapter if adapter is not None else found is made
    return found


def value(seen: Tensor) -> Tensor:
    """Of an observation: another one for each."""
    return seen[..., 0] * 2.0 + 1.0


@pytest.mark.parametrize("case", CASES)
def test_what_follows_a_cut_is_worth_its_final_observation(case: str) -> None:
    """Targets are 1 + γ times the value of what the step led to: 10k + age + 1, in the last step of an episode, too.
    The last observation before it (one less), and the next episode's first (10 more), give others."""
    made = TensorEnvs(adapted(case))
    spec: Any = made
    cfg = ppo.Config(env="", unroll=8)
    rollouts = Rollouts(made, ppo.make_policy(cfg, spec, 0), rows=8)
    learned, ages = 0, set()
    for _ in range(3):
        batch = rollouts.next()
        valid, seen = batch["valid"][:-1], batch["observation"]
        discounts = torch.where(batch["terminated"][:-1], 0.0, GAMMA)
        _, targets = gae(
            values=value(seen), rewards=batch["reward"][:-1], discounts=discounts, valid=valid, lambda_=0.0
        )
        expected = 1.0 + GAMMA * value(seen[:-1] + 1.0)
        torch.testing.assert_close(targets[valid], expected[valid])
        learned += int(valid.sum())
        ages |= {int(age) for age in (seen[:-1][valid] % 10).unique()}
    finals = CASES[case][2]
    assert ages == set(range(LENGTH if finals else LENGTH - 1)), "where its end is lost, the last step is left out"
    notes = made.take_notes()
    assert bool(notes) != finals
    assert made.take_notes() == []


@pytest.mark.parametrize("case", CASES)
def test_so_it_is_in_a_ring(case: str) -> None:
    made = TensorEnvs(adapted(case))
    ring = Ring(30, COUNT, n=1, discount=GAMMA, seed=0, device=torch.device("cpu"))
    observation = made.reset()
    for _ in range(40):
        action = torch.zeros(COUNT, 1)
        step = made.step(action)
        ring.add(observation, action, step)
        observation = step.observation
    batch = ring.sample(500, made.observation_space)
    torch.testing.assert_close(batch["next_observation"], batch["observation"] + 1.0)
    assert ((batch["observation"] % 10).max() == LENGTH - 1) == CASES[case][2]


@pytest.mark.parametrize("case", CASES)
def test_and_the_evaluator_counts_every_step(case: str) -> None:
    made = envs.Envs(OnHost(adapted(case), "clock"), "clock", seed=0)
    made.reset()
    for _ in range(12):
        made.step(np.zeros((COUNT, 1), np.float32))
    assert {(episode.return_, episode.length) for episode in made.episodes()} == {(3.0, 3)}


@pytest.mark.parametrize("name", ["gymnax:CartPole-v1", "brax:inverted_pendulum"])
def test_jax_gives_final_observations_through_dlpack(name: str) -> None:
    """The step that a limit cuts leads where the same step leads without a limit."""
    reason = "it pins another Gymnasium: run this in an environment that has it (docs/gpu-simulators.md)"
    pytest.importorskip(name.partition(":")[0], reason=reason)
    option = "max_steps_in_episode" if name.startswith("gymnax") else "episode_length"
    options = {} if name.startswith("gymnax") else {"backend": "spring"}
    seen: dict[int, list[Tensor]] = {}
    for limit in (2, 100):
        spec = envs.describe(name, {**options, option: limit})
        assert (spec.on_device, spec.max_episode_steps) == (True, limit)
        made = envs.make_tensors(spec, 3, seed=5, device="cpu")
        seen[limit] = [made.reset()]
        for _ in range(2):
            action = torch.zeros(3, *([1] if made.action_space.shape else []), dtype=torch.float32)
            step = made.step(action if made.action_space.shape else torch.zeros(3, dtype=torch.int64))
            seen[limit].append(step.final_observation)
        assert step.truncated.tolist() == [limit == 2] * 3
        assert torch.equal(step.final_observation, step.observation) == (limit == 100)
        other = envs.make_tensors(spec, 3, seed=6, device="cpu")
        other.reset()
        other.load_state_dict(made.state_dict())
        again = [
            each.step(torch.zeros_like(action) if made.action_space.shape else torch.ones(3).long())
            for each in (made, other)
        ]
        assert torch.equal(again[0].observation, again[1].observation)
    for one, two in zip(seen[2], seen[100]):
        torch.testing.assert_close(one, two)
