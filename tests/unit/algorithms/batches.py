"""Batches as actors would store them, for tests of on-policy learners, and learners as their loop sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from shoal.batches import to_batch
from shoal.learning import Update
from shoal.nets.weights import export_weights

T, B = 6, 5
Batch = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Spec:
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


DISCRETE = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))
CONTINUOUS = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-2.0, 2.0, (2,)))
NESTED = Spec(
    spaces.Dict(
        camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Discrete(4), arm=spaces.Box(-9, 9, (2,))
    ),
    spaces.MultiDiscrete([2, 3]),
)
SPECS = {"discrete": DISCRETE, "continuous": CONTINUOUS, "nested": NESTED}


def tensors(columns: Batch, spec: Any) -> dict[str, Any]:
    """Columns as the learner's loop hands them on."""
    return to_batch(columns, spec.observation_space)


def update(learner: Any, columns: Batch, spec: Any = DISCRETE) -> Update:
    made: Update = learner.update(tensors(columns, spec))
    return made


def weights(learner: Any) -> Batch:
    """What is published."""
    return export_weights(learner.network)


def batch_of(policy: Any, spec: Spec, seed: int = 0) -> Batch:
    """An episode of environment 0 terminates with row 2, one of environment 1 is cut by a time limit with row 3."""
    random = np.random.default_rng(seed)
    state = policy.initial_state(B)
    rows: dict[str, list[npt.NDArray[Any]]] = {}
    start = {f"state/{name}": value for name, value in state.items()}
    valid = np.ones((T + 1, B), np.bool_)
    terminated = np.zeros((T + 1, B), np.bool_)
    valid[3, 0] = valid[4, 1] = False
    terminated[2, 0] = True
    spec.observation_space.seed(seed)
    first = np.zeros(B, np.bool_)
    for t in range(T + 1):
        drawn = [spec.observation_space.sample() for _ in range(B)]
        if isinstance(spec.observation_space, spaces.Dict):
            observation: Any = {key: np.stack([row[key] for row in drawn]) for key in spec.observation_space.spaces}
            flat = {f"observation/{key}": value for key, value in observation.items()}
        else:
            observation = np.stack(drawn)
            flat = {"observation": observation}
        action, state, extras = policy.act(observation, state, first)
        first = ~valid[t]
        for name, value in (flat | extras | {"action": action}).items():
            rows.setdefault(name, []).append(value)
    reward = random.standard_normal((T + 1, B)).astype(np.float32)
    stacked = {name: np.stack(values) for name, values in rows.items()}
    return stacked | start | {"reward": np.where(valid, reward, 0.0), "terminated": terminated, "valid": valid}


def bandit(learner: Any, policy: Any, spec: Spec, iterations: int, lag: int = 0) -> list[float]:
    """Mean rewards of a task that sees a context: 1 for the action named by its largest entry, or as near to it as
    possible. With `lag`, actions come from weights that are so many iterations old."""
    random = np.random.default_rng(0)
    returns = []
    published = [weights(learner)]
    for _ in range(iterations):
        policy.load(published[max(0, len(published) - 1 - lag)])
        observation = random.uniform(-1.0, 1.0, (9, 32, 3)).astype(np.float32)
        start = {f"state/{name}": value for name, value in policy.initial_state(32).items()}
        drawn = [policy.act(row, policy.initial_state(32), np.ones(32, np.bool_)) for row in observation]
        action = np.stack([row[0] for row in drawn])
        if isinstance(spec.action_space, spaces.Discrete):
            reward = (action == observation.argmax(-1)).astype(np.float32)
        else:
            reward = -np.square(action - observation[..., :2]).sum(-1)
        ends = np.ones((9, 32), np.bool_)
        log_prob = np.stack([row[2]["log_prob"] for row in drawn])
        columns = {"observation": observation, "action": action, "reward": reward, "log_prob": log_prob}
        update(learner, columns | {"terminated": ends, "valid": ends} | start, spec)
        published.append(weights(learner))
        returns.append(float(reward.mean()))
    return returns


def changed(batch: Batch, change: Callable[[Batch], None]) -> Batch:
    """A copy with a change."""
    copy = {name: column.copy() for name, column in batch.items()}
    change(copy)
    return copy


def equal(a: Batch, b: Batch, tolerance: float = 0.0) -> bool:
    return all(np.allclose(a[name], b[name], rtol=tolerance, atol=tolerance) for name in a)


class Together:
    """One of several learners in threads, which add up as `shoal.services.group.Member`s do."""

    def __init__(self, rank: int, barrier: threading.Barrier, shares: list[Any]) -> None:
        self.rank, self.size = rank, barrier.parties
        self._barrier, self._shares = barrier, shares

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self._shares[self.rank] = values
        self._barrier.wait(60.0)
        total = torch.stack(self._shares).sum(0)
        self._barrier.wait(60.0)
        return total


def together(count: int, work: Callable[[Together], Any]) -> list[Any]:
    """What `work` returns for each of so many learners that run at the same time."""
    barrier, shares = threading.Barrier(count), [None] * count
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, [Together(rank, barrier, shares) for rank in range(count)]))
