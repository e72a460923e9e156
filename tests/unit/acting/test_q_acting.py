"""The acting side of Q-learning: the numpy forward, the ladder of epsilons, greedy choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from network_options import NetworkOptions, SpacePair
from shoal.acting import numpy_recurrent_q
from shoal.acting.numpy_q import NumpyQ, supported
from shoal.acting.q import QPolicy
from shoal.acting.recurrent_q import RecurrentQPolicy
from shoal.functional.arrays import zero_where
from shoal.nets.q import QNetwork, RecurrentQNetwork, make_q_network, make_recurrent_q_network

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
BYTES = spaces.Box(0, 255, (2, 3), np.uint8)
ACTIONS = spaces.Discrete(3)


def q_network(space: spaces.Space[Any], seed: int, quantiles: int = 0, **options: Any) -> nn.Module:
    return make_q_network(
        NetworkOptions(**{"activation": "relu", **options}), SpacePair(space, ACTIONS), seed, quantiles
    )


def all_alike(items: Mapping[str, Tensor]) -> Tensor:
    """A law for priorities: with one, a policy records the values that it acted on."""
    return torch.ones(len(items["reward"]))


@pytest.mark.parametrize("space", [VECTOR, BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize("quantiles", [0, 5])
@pytest.mark.parametrize("options", [{}, {"stream": 6}, {"activation": "tanh"}, {"hidden": ()}], ids=str)
def test_the_numpy_forward_is_the_networks(space: spaces.Box, quantiles: int, options: dict[str, Any]) -> None:
    network, other = (q_network(space, seed, quantiles, **{"hidden": (16, 8), **options}) for seed in (1, 2))
    assert isinstance(network, QNetwork)
    fast = NumpyQ(network)
    space.seed(0)
    observation = np.stack([space.sample() for _ in range(7)])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        fast.load({name: tensor.numpy() for name, tensor in other.state_dict().items()})
        expected = other(torch.from_numpy(observation)).numpy()
    np.testing.assert_allclose(fast(observation), expected, rtol=1e-4, atol=1e-5)


def test_networks_over_other_spaces_act_through_torch() -> None:
    nested = spaces.Dict(place=spaces.Discrete(3), speed=VECTOR)
    network = q_network(nested, 1, hidden=(8,))
    assert not supported(network)
    observation = {"place": np.array([0, 2]), "speed": np.zeros((2, 4), np.float32)}
    policy = QPolicy(network, 1, epsilons=np.array([0.0, 0.0]), priorities=all_alike)
    action, _, values = policy.act(observation, {}, np.ones(2, np.bool_))
    with torch.no_grad():
        q = network({name: torch.from_numpy(part) for name, part in observation.items()}).numpy()
    np.testing.assert_array_equal(action, q.argmax(-1))
    np.testing.assert_allclose(values["q"], q.max(-1), rtol=1e-6)


def test_each_environment_explores_by_its_place_in_the_ladder() -> None:
    ladder = np.array([1.0, 0.0, 0.0, 1.0])
    policy = QPolicy(q_network(VECTOR, 1, hidden=(8,)), 1, epsilons=ladder)
    policy.set_environments(np.array([3, 1]), 4)
    observation = np.ones((2, 4), np.float32)
    actions = np.stack([policy.act(observation, {}, np.zeros(2, np.bool_))[0] for _ in range(300)])
    assert np.bincount(actions[:, 0], minlength=3).min() > 60
    assert len(set(actions[:, 1])) == 1


@pytest.mark.parametrize("quantiles", [0, 4])
def test_what_is_kept_are_the_values_of_the_action_taken_and_of_the_best(quantiles: int) -> None:
    network = q_network(VECTOR, 1, quantiles, hidden=(8,))
    policy = QPolicy(network, 1, epsilons=np.full(50, 0.5), priorities=all_alike)
    observation = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    action, _, values = policy.act(observation, {}, np.zeros(50, np.bool_))
    with torch.no_grad():
        q = network(torch.from_numpy(observation)).numpy()
    best = (q.mean(-1) if quantiles else q).argmax(-1)
    assert (action != best).any()
    np.testing.assert_allclose(values["q"], q[np.arange(50), action], atol=1e-6)
    np.testing.assert_allclose(values["value"], q[np.arange(50), best], atol=1e-6)


@pytest.mark.parametrize("space", [VECTOR, BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize("options", [{}, {"stream": 6}, {"activation": "tanh"}, {"hidden": ()}], ids=str)
def test_a_recurrent_policy_steps_in_numpy_as_the_network_does(space: spaces.Box, options: dict[str, Any]) -> None:
    chosen = NetworkOptions(**{"activation": "relu", "hidden": (16,), "lstm": 7, **options})
    network, other = (make_recurrent_q_network(chosen, SpacePair(space, ACTIONS), seed) for seed in (1, 2))
    assert isinstance(other, RecurrentQNetwork)
    assert numpy_recurrent_q.supported(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    policy = RecurrentQPolicy(network, 1, epsilons=np.full(5, 0.5), priorities=all_alike)
    policy.load({name: tensor.numpy() for name, tensor in other.state_dict().items()})
    space.seed(0)
    random = np.random.default_rng(0)
    state, first = policy.initial_state(5), np.ones(5, np.bool_)
    core, action, reward = other.initial_state(5), np.zeros(5, np.int64), np.zeros(5, np.float32)
    for _ in range(6):
        observation = np.stack([space.sample() for _ in range(5)])
        row = (torch.from_numpy(array)[None] for array in (observation, action, reward))
        with torch.no_grad():
            q, core = other(*row, core, torch.from_numpy(first)[None])
        action, state, values = policy.act(observation, state, first)
        np.testing.assert_allclose(values["value"], q[0].max(-1).values.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(values["q"], q[0].numpy()[np.arange(5), action], rtol=1e-4, atol=1e-5)
        for name, expected in core.items():
            np.testing.assert_allclose(state[f"core/{name}"], expected.numpy(), rtol=1e-4, atol=1e-5)
        reward = random.standard_normal(5).astype(np.float32)
        first = random.random(5) < 0.3
        state = zero_where(first, {**state, "last_reward": reward})
