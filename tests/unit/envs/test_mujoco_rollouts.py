"""Environments that MuJoCo's threads step: Gymnasium's inverted pendulum, step by step, and learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.algorithms import ppo
from shoal.envs.mujoco_rollouts import MujocoTask
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.tensors import TensorEnvs
from shoal.errors import UserError
from shoal.experiment.training import train

pytest.importorskip("mujoco", reason="it needs shoal[mujoco]")
ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


class InvertedPendulums(MujocoTask):
    """InvertedPendulum-v5."""

    xml, frame_skip = str(ASSETS / "inverted_pendulum.xml"), 2
    single_observation_space, single_action_space = spaces.Box(-np.inf, np.inf, (4,)), spaces.Box(-3.0, 3.0, (1,))
    usual_limit = 1_000

    def start(self) -> tuple[Tensor, Tensor]:
        return self.uniform(-0.01, 0.01, 2), self.uniform(-0.01, 0.01, 2)

    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        return torch.cat([position, velocity], 1)

    def judge(self, position: Tensor, velocity: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        terminated = (position[:, 1].abs() > 0.2) | ~position.isfinite().all(1)
        return (~terminated).float(), terminated


@pytest.mark.parametrize(("mode", "threads"), [("next_step", 1), ("same_step", 2)])
def test_it_is_gymnasiums_step_by_step(mode: Autoreset, threads: int) -> None:
    ones: list[Any] = [gymnasium.make("InvertedPendulum-v5").unwrapped for _ in range(3)]
    made, rng = InvertedPendulums(3, 1, autoreset=mode, threads=threads), np.random.default_rng(0)
    seen, _ = made.reset()
    state = made._state["physics"].numpy()
    for one, physics in zip(ones, state):
        one.reset(seed=0)
        one.set_state(physics[1:3], physics[3:5])
    ended = np.zeros(3, np.bool_)
    while not ended.all():
        action = rng.uniform(-3, 3, (3, 1)).astype(np.float32)
        seen, reward, terminated, _, info = made.step(torch.from_numpy(action))
        final = info["final_obs"] if mode == "same_step" else seen
        for number, one in enumerate(ones):
            if not ended[number]:
                expected, gained, down, _, _ = one.step(action[number])
                np.testing.assert_allclose(final[number], expected, atol=1e-5)
                assert (float(reward[number]), bool(terminated[number])) == (gained, down)
                ended[number] = down
    made.close()


def test_what_is_cut_has_its_final_observation_and_its_state_goes_on() -> None:
    cut, whole = (TensorEnvs(InvertedPendulums(2, 5, autoreset="same_step", max_episode_steps=n)) for n in (3, 99))
    for made in (cut, whole):
        made.reset()
        for _ in range(3):
            step = made.step(torch.full((2, 1), 0.1))
        if made is cut:
            assert step.truncated.all()
            final, first = step.final_observation, step.observation
    torch.testing.assert_close(final, step.observation)
    assert not torch.allclose(final, first)
    other = TensorEnvs(InvertedPendulums(2, 6, autoreset="same_step", max_episode_steps=99))
    other.reset()
    other.load_state_dict(whole.state_dict())
    left, right = (made.step(torch.full((2, 1), -0.2)) for made in (whole, other))
    assert torch.equal(left.observation, right.observation)


def test_another_device_is_refused() -> None:
    with pytest.raises(UserError, match="InvertedPendulums is stepped by MuJoCo's threads: leave --device at cpu"):
        InvertedPendulums(1, device="meta")


@pytest.mark.slow
def test_ppo_learns_it(tmp_path: Path) -> None:
    cfg = ppo.Config(env=InvertedPendulums, envs_per_actor=32, unroll=64, learning_rate=1e-3)
    result = train(cfg, run_dir=str(tmp_path / "run"), stop_return=900.0, stop_seconds=150.0, quiet=True)
    assert result.reached
