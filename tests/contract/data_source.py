"""A page without actors and replay: it fits numbers that lie in a file, read by a source of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import optim
from shoal.acting.policy import Policy
from shoal.config import config
from shoal.envs import EnvSpec
from shoal.learning import Learning, Source, Taken, Update
from shoal.loops.wiring import Settings, source_program
from shoal.options import Acting
from shoal.options import Learning as LearningOptions
from shoal.program import Program
from shoal.state import Scope, State, Stateful

PRESETS: dict[str, dict[str, Any]] = {}
BATCH = 4


@config()
class Config(Acting, LearningOptions):
    data: str = ""
    "file with the episodes"


class Episodes(Source):
    """A list of episodes, in an order of its own; where it stands is its state."""

    def __init__(self, path: str, learning: Learning) -> None:
        self._observations = np.load(path)
        self._random, self._read = np.random.default_rng(learning.seed), 0

    def take(self) -> Taken:
        rows = self._observations[self._random.integers(len(self._observations), size=BATCH)]
        self._read += BATCH
        return Taken({"observation": torch.from_numpy(rows)}, BATCH)

    def measure(self, taken: Taken) -> Mapping[str, float]:
        return {"data_read": self._read, "replay_size": len(self._observations)}

    def state_dict(self, scope: Scope = "own") -> State:
        return {"random": self._random.bit_generator.state, "read": self._read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._random.bit_generator.state, self._read = state["random"], state["read"]


class Fit(Stateful):
    """Learns the mean of what it reads."""

    def __init__(self, cfg: Config, env: EnvSpec, seed: int, peers: Any = optim.ALONE) -> None:
        self.cfg, self.network = cfg, nn.Linear(4, 1)
        self.optimizer = optim.make(self.network.parameters(), peers, kind="adam", rate=0.01)

    def update(self, batch: Any) -> Update:
        loss = (self.network(batch["observation"]) - 1.0).square().mean()
        return Update({"loss": loss.detach()}, applied=self.optimizer.step(loss).applied)


class Idle:
    def initial_state(self, count: int) -> dict[str, Any]:
        return {}

    def act(self, observation: Any, state: Any, first: Any) -> Any:
        return np.zeros(len(first), np.int64), state, {}

    def load(self, weights: Any) -> None:
        self.loaded = weights


def make_policy(cfg: Config, env: EnvSpec, seed: int, greedy: bool = False) -> Policy:
    return Idle()


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    return source_program(cfg, env, settings, learner=Fit, policy=make_policy, source=partial(Episodes, cfg.data))
