"""Stored n-step transitions for the tests of algorithms with replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from batches import tensors as to_tensors
from gymnasium import spaces

from shoal.acting import Policy, Recorder, Sender
from shoal.replay import Replay, Sample, Table, n_step
from steps import outcome

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Spec:
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


def stored(cfg: Any, policy: Policy, spec: Spec, blocks: int = 6) -> Replay:
    """What an actor with this policy sends of random episodes that are terminated or cut short."""
    random = np.random.default_rng(3)
    replay = Replay([Table("transitions", 1000)])
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"))
    count = cfg.envs_per_actor
    recorder = Recorder(policy, count, cfg.rows, Sender(policy, [replay], {"transitions": pattern}, "actor"))
    spec.observation_space.seed(0)
    ended = np.zeros(count, np.bool_)
    sent = 0
    while sent < blocks:
        drawn = [spec.observation_space.sample() for _ in range(count)]
        nested = isinstance(spec.observation_space, spaces.Dict)
        recorder.act({key: np.stack([row[key] for row in drawn]) for key in drawn[0]} if nested else np.stack(drawn))
        valid, ends = ~ended, ~ended & (random.random(count) < 0.3)
        terminated = ends & (random.random(count) < 0.5)
        reward = np.where(valid, random.standard_normal(count), 0.0).astype(np.float32)
        sent += recorder.result(outcome(reward, terminated, valid))
        ended = ends
    return replay


def batch_of(sample: Sample) -> Columns:
    return {**sample.data, "importance": np.ones(len(sample), np.float32)}


def tensors(batch: Columns, spec: Any) -> dict[str, Any]:
    """Copies, which may be changed, as the learner's loop hands them on."""
    return to_tensors({name: np.array(array) for name, array in batch.items()}, spec)
