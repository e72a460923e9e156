"""Learners of a group, as nodes that the contract tests drive with given batches. Node processes import this file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from gymnasium import spaces

from shoal.batches import to_batch
from shoal.nets.weights import export_weights
from shoal.services import group as meeting
from shoal.services.group import Group, Member

Batch = dict[str, npt.NDArray[Any]]
Case = tuple[str, dict[str, Any]]  # algorithm, options
T, B = 7, 9
LEARNERS = {"impala": "Impala", "ppo": "PPO", "appo": "APPO", "apex_dqn": "ApexDQN"}
TRANSITIONS = ("apex_dqn",)  # who learns from those and not from rows


@dataclass(frozen=True)
class Spec:
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


SPEC = Spec(spaces.Box(-5.0, 5.0, (3,), np.float32), spaces.Discrete(3))


def make_learner(algorithm: str, options: dict[str, Any], *peers: Any) -> Any:
    module = importlib.import_module(f"shoal.algorithms.{algorithm}")
    learner = getattr(module, LEARNERS[algorithm])
    return learner(module.Config(hidden=(16,), **options), SPEC, 0, *peers)


def batch(step: int) -> Batch:
    """Rows of which the first environments' are mostly invalid and the last ones' mostly valid."""
    random = np.random.default_rng(step)
    valid = random.random((T + 1, B)) > np.linspace(0.8, 0.0, B)
    return {
        "observation": (random.standard_normal((T + 1, B, 3)) * [1.0, 2.0, 0.5] + [0.0, 1.0, 2.0]).astype(np.float32),
        "action": random.integers(0, 3, (T + 1, B)),
        "reward": np.where(valid, random.standard_normal((T + 1, B)), 0.0).astype(np.float32),
        "terminated": (random.random((T + 1, B)) < 0.1) & valid,
        "valid": valid,
        "log_prob": random.uniform(-1.3, -0.9, (T + 1, B)).astype(np.float32),
        "version": np.zeros((T + 1, B), np.int64),
    }


def transitions(step: int) -> Batch:
    random = np.random.default_rng(step)
    return {
        "observation": random.standard_normal((B, 3)).astype(np.float32),
        "next_observation": random.standard_normal((B, 3)).astype(np.float32),
        "action": random.integers(0, 3, B),
        "reward": random.standard_normal(B).astype(np.float32),
        "discount": random.choice(np.array([0.0, 0.97], np.float32), B),
        "importance": random.uniform(0.1, 1.0, B).astype(np.float32),
    }


def batch_for(algorithm: str, step: int) -> Batch:
    return transitions(step) if algorithm in TRANSITIONS else batch(step)


def share(whole: Batch, rank: int, size: int) -> Batch:
    part = slice(B * rank // size, B * (rank + 1) // size)
    return {name: column[part] if column.shape[0] == B else column[:, part] for name, column in whole.items()}


def update(learner: Any, columns: Batch) -> None:
    learner.update(to_batch(columns, SPEC.observation_space))


class Rank:
    """One learner of a group: makes `updates` updates from its shares for one case after the other, and ends."""

    def __init__(self, group: Group, rank: int, size: int, cases: list[Case], updates: int) -> None:
        self._member, self._updates = Member(group, rank, size), updates
        self._cases = cases
        self._learners = [make_learner(algorithm, options, self._member) for algorithm, options in cases]

    def step(self) -> bool:
        for learner, (algorithm, _) in zip(self._learners, self._cases):
            for step in range(self._updates):
                update(learner, share(batch_for(algorithm, step), self._member.rank, self._member.size))
        return False

    def weights(self) -> list[Batch]:
        return [export_weights(learner.network) for learner in self._learners]


class Listening:
    """A learner that tells on which addresses its process listens, for the others of its group and for anybody."""

    def __init__(self, group: Group, rank: int, size: int, machine: str) -> None:
        meeting._machine = lambda: machine
        self._member = Member(group, rank, size)
        self._member.largest(1.0)

    def addresses(self) -> set[tuple[str, int]]:
        everything = psutil.Process().net_connections("inet")
        return {(one.laddr.ip, one.laddr.port) for one in everything if one.status == psutil.CONN_LISTEN}
