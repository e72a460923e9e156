"""A learner whose source are rollouts on its own device: what is counted, published, and goes on with its state."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from shoal.algorithms import ppo
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.tensors import TensorEnvs
from shoal.learning import Learning
from shoal.loops.device import RolloutSource
from shoal.loops.learner import LearnerLoop
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.versions import NONE, number
from tensor_vectors import COUNT, SPACES, Counting

ROWS, UPDATES = 7, 4


CONFIG = ppo.Config(env="", unroll=ROWS)


def make(seed: int) -> ppo.PPO:
    return ppo.PPO(CONFIG, SPACES, seed)


def source(learning: Learning, mode: Autoreset = "same_step") -> RolloutSource:
    return RolloutSource(
        learning,
        make_envs=lambda seed, device: TensorEnvs(Counting(mode)),
        make_policy=partial(ppo.make_policy, CONFIG, SPACES),
        rows=ROWS,
    )


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_learner_learns_from_rollouts_of_its_own_and_counts_their_steps(mode: Autoreset) -> None:
    weights, metrics = WeightStore(), Metrics()
    loop = LearnerLoop(make, partial(source, mode=mode), weights, metrics, max_updates=UPDATES)
    while loop.step():
        pass
    counts = metrics.snapshot()["counts"]
    most = UPDATES * ROWS * COUNT
    assert counts["learner_steps"] == UPDATES
    assert counts["env_steps"] == counts["trained_steps"]
    assert counts["env_steps"] == most if mode == "same_step" else 0 < counts["env_steps"] < most
    found = weights.newer(NONE)
    assert found is not None
    assert number(found[0]) == UPDATES


def test_the_random_numbers_of_acting_go_on_with_its_state() -> None:
    def begun() -> RolloutSource:
        return source(Learning(make(0), torch.device("cpu"), seed=3))

    def actions(source: RolloutSource) -> Any:
        return source.take().batch["action"].clone()

    whole, other, fresh = begun(), begun(), begun()
    actions(whole)
    other.load_state_dict(whole.state_dict())
    first, later = actions(fresh), actions(other)
    assert not torch.equal(first, later), "a run that is resumed does not repeat what it did"
    again = begun()
    again.load_state_dict(whole.state_dict())
    assert torch.equal(actions(again), later)


def test_a_policy_without_a_network_is_refused() -> None:
    class Other:
        pass

    made: Any = Other()
    with pytest.raises(TypeError, match="Other does not"):
        RolloutSource(
            Learning(make(0), torch.device("cpu")),
            make_envs=lambda seed, device: TensorEnvs(Counting("same_step")),
            make_policy=lambda seed: made,
            rows=ROWS,
        )
