"""Nodes that act and learn on a device: two with gradients averaged are one with twice the environments."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from batches import Together, equal, together, weights

from shoal import tree
from shoal.algorithms import ppo
from shoal.envs.tensors import TensorEnvs
from shoal.envs.torch_tasks.cartpole import CartPoles
from shoal.learning import Learning
from shoal.loops.device import RolloutSource

CPU = torch.device("cpu")
SPEC: Any = SimpleNamespace(
    observation_space=CartPoles.single_observation_space, action_space=CartPoles.single_action_space
)
CONFIG = ppo.Config(env="", unroll=24, epochs=1, minibatches=1, normalize_observations=True, normalize_rewards=True)


def acted(rank: int) -> Any:
    """What a node's environments gave under the weights that all nodes begin with."""
    source = RolloutSource(
        Learning(ppo.PPO(CONFIG, SPEC, 0), CPU, seed=10 + rank, rank=rank, learners=2),
        make_envs=lambda seed, device: TensorEnvs(CartPoles(16, seed, device)),
        make_policy=partial(ppo.make_policy, CONFIG, SPEC),
        rows=CONFIG.unroll,
    )
    return source.take().batch


def test_two_nodes_are_one_with_twice_the_environments() -> None:
    batches = [acted(rank) for rank in range(2)]
    assert int(batches[0]["valid"].sum()) != int(batches[1]["valid"].sum()), "their shares differ in size"
    one = ppo.PPO(CONFIG, SPEC, 0)
    before = weights(one)
    columns = {name: part for name, part in batches[0].items() if name != "state"}
    whole = {name: tree.map(lambda *x: torch.cat(x, 1), part, batches[1][name]) for name, part in columns.items()}
    one.update(whole | {"state": {}})

    def node(peers: Together) -> Any:
        learner = ppo.PPO(CONFIG, SPEC, 0, peers)  # type: ignore[arg-type]
        learner.update(batches[peers.rank])
        return weights(learner)

    left, right = together(2, node)
    assert equal(left, right)
    assert not equal(before, left, 1e-4)
    assert equal(weights(one), left, 2e-5)
