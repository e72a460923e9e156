"""A page that trains SAC on a dataset: what the house gives for logged data, and nothing else."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from shoal.algorithms import sac
from shoal.config import config
from shoal.data import DatasetWriter, episode
from shoal.envs import EnvSpec
from shoal.loops.wiring import Settings, Wiring
from shoal.options import Data
from shoal.program import Program
from shoal.replay import n_step
from shoal.types import NO_ENV

PRESETS = sac.PRESETS
make_policy = sac.make_policy


@config(env=NO_ENV)
class Config(sac.Config, Data):
    """SAC's options, and those of data."""


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    wiring = Wiring(cfg, env, settings)
    source = wiring.dataset_source(cfg.batch, n_step(cfg.n, cfg.gamma))
    wiring.add_learners(sac.SAC, source=source, publish_every=cfg.publish_every)
    wiring.add_evaluator(make_policy)
    return wiring.program


def write(path: Path, count: int, seed: int) -> None:
    """Episodes of Pendulum-v1 by a random policy that keeps to an action for a while."""
    env, random = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    with DatasetWriter(path, env.observation_space, env.action_space, env="Pendulum-v1") as writer:
        for index in range(count):
            observation, _ = env.reset(seed=seed + index)
            observations, actions, rewards = [observation], [], []
            terminated = truncated = False
            while not (terminated or truncated):
                if random.random() < 0.2 or not actions:
                    action = random.uniform(-2.0, 2.0, size=1).astype(np.float32)
                observation, reward, terminated, truncated, _ = env.step(action)
                observations.append(observation)
                actions.append(action)
                rewards.append(reward)
            ends = {"terminated": terminated, "truncated": truncated, "seed": seed + index}
            writer.append(episode(np.stack(observations), np.stack(actions), np.asarray(rewards), **ends))
    env.close()
