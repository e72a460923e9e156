"""A page that trains SAC on episodes that lie in a file: a source of its own, no actors, no replay."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shoal.algorithms import sac
from shoal.batches import to_batch
from shoal.config import config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.learning import Learning, Source, Taken
from shoal.loops.wiring import Settings, source_program
from shoal.program import Program
from shoal.state import Scope, State
from shoal.types import Columns

PRESETS = sac.PRESETS
make_policy = sac.make_policy


@config()
class Config(sac.Config):
    file: str = ""
    """The file with the episodes."""


class Episodes(Source):
    """Transitions with n-step returns, drawn from the episodes of a file; its generator is all that changes."""

    def __init__(self, cfg: Config, env: EnvSpec, learning: Learning) -> None:
        if not Path(cfg.file).is_file():
            raise UserError(f"--file {cfg.file!r} is no file: give one that `write` has made.")
        episodes = [n_step(episode, cfg.n, cfg.gamma) for episode in read(cfg.file)]
        self._columns = {name: np.concatenate([part[name] for part in episodes]) for name in episodes[0]}
        self._space, self._learning = env.observation_space, learning
        first, last = (cfg.batch * rank // learning.learners for rank in (learning.rank, learning.rank + 1))
        self._share = last - first
        self._random = np.random.default_rng(learning.seed)
        self._size = len(self._columns["reward"])

    def take(self) -> Taken:
        rows = self._random.integers(self._size, size=self._share)
        columns = {name: column[rows] for name, column in self._columns.items()}
        return Taken(to_batch(columns, self._space, self._learning.device), self._share)

    def measure(self, taken: Taken) -> Mapping[str, float]:
        return {"transitions": self._size}

    def state_dict(self, scope: Scope = "own") -> State:
        return {"random": self._random.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._random.bit_generator.state = state["random"]


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    source = partial(Episodes, cfg, env)
    return source_program(
        cfg, env, settings, learner=sac.SAC, policy=make_policy, source=source, publish_every=cfg.publish_every
    )


# ---- episodes in a file: observations [T+1, ...], actions, rewards [T], and whether it came to an end of its own


def write(path: Path, count: int, seed: int) -> None:
    """Episodes of Pendulum-v1 by a random policy that keeps to an action for a while."""
    env, random = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    columns: Columns = {}
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
        columns[f"{index}/observation"] = np.stack(observations)
        columns[f"{index}/action"] = np.stack(actions)
        columns[f"{index}/reward"] = np.asarray(rewards, np.float32)
        columns[f"{index}/terminated"] = np.asarray(terminated)
    np.savez(path, **columns)


def read(path: str) -> list[Columns]:
    with np.load(path) as file:
        names = ("observation", "action", "reward", "terminated")
        return [{name: file[f"{index}/{name}"] for name in names} for index in range(len(file.files) // len(names))]


def n_step(episode: Columns, n: int, gamma: float) -> Columns:
    """Its transitions, as `shoal.replay.n_step` gives them."""
    length = len(episode["reward"])
    begin = np.arange(length)
    end = np.minimum(begin + n, length)
    rewards = np.concatenate([episode["reward"], np.zeros(n)])
    returns = sum(gamma**k * rewards[begin + k] for k in range(n))
    over = (end == length) & episode["terminated"]
    return {
        "observation": episode["observation"][begin],
        "action": episode["action"],
        "reward": np.asarray(returns, np.float32),
        "discount": np.where(over, 0.0, gamma ** (end - begin)).astype(np.float32),
        "next_observation": episode["observation"][end],
    }
