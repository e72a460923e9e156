"""Acting with an actor-critic: the numpy forward, recurrent states, greedy choice, the user's own network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from network_options import NetworkOptions, SpacePair
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.acting.numpy_actor_critic import NumpyActorCritic, supported
from shoal.functional.arrays import zero_where
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.building import make_actor_critic
from shoal.nets.weights import export_weights

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
ENV = SpacePair(VECTOR, spaces.Discrete(3))
RECURRENT = NetworkOptions(hidden=(8,), lstm=6)
T, B = 9, 5


@pytest.mark.parametrize(
    ("action_space", "options"),
    [
        (spaces.Discrete(3), {}),
        (spaces.Discrete(3), {"activation": "relu", "shared": False}),
        (spaces.Discrete(3), {"hidden": ()}),
        (spaces.MultiDiscrete([2, 3]), {}),
        (spaces.Box(-2.0, 2.0, (3,)), {}),
        (spaces.Box(-2.0, 2.0, (3,)), {"state_dependent_std": True}),
    ],
)
@pytest.mark.parametrize("observation_space", [VECTOR, spaces.Box(0, 255, (2, 3), np.uint8)], ids=["floats", "bytes"])
def test_the_numpy_policy_is_the_torch_policy(
    observation_space: spaces.Box, action_space: spaces.Space[Any], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    network = ActorCritic(observation_space, action_space, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    assert supported(network)
    observation = np.stack([observation_space.sample() for _ in range(B)])
    fast = NumpyActorCritic(ActorCritic(observation_space, action_space, **options))
    fast.load(export_weights(network))
    with torch.no_grad():
        expected, _, _ = network(torch.from_numpy(observation)[None], {}, torch.zeros(1, B, dtype=torch.bool))
    np.testing.assert_allclose(fast(observation), expected[0].numpy(), rtol=1e-4, atol=1e-5)


def test_a_recurrent_policy_acts_as_its_network_in_training() -> None:
    """Acting row by row through numpy states gives the log-probabilities that the learner finds on the batch."""
    network = make_actor_critic(RECURRENT, ENV, 3)
    policy = ActorCriticPolicy(make_actor_critic(RECURRENT, ENV, 4), seed=0)
    policy.load(export_weights(network))
    random = np.random.default_rng(0)
    observation = random.standard_normal((T, B, 4)).astype(np.float32)
    first = random.random((T, B)) < 0.3
    state = policy.initial_state(B)
    actions, log_probs = [], []
    for t in range(T):
        action, state, extras = policy.act(observation[t], zero_where(first[t], state), first[t])
        actions.append(action)
        log_probs.append(extras["log_prob"])
    parameters, _, _ = network(torch.from_numpy(observation), network.initial_state(B), torch.from_numpy(first))
    expected = network.distribution.log_prob(parameters, torch.from_numpy(np.stack(actions)))
    np.testing.assert_allclose(np.stack(log_probs), expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_greedy_policy_takes_the_most_probable_action_and_draws_nothing() -> None:
    network = make_actor_critic(NetworkOptions(), ENV, 3)
    observation = np.random.default_rng(0).standard_normal((B, 4)).astype(np.float32)
    first = np.zeros(B, np.bool_)
    greedy = [ActorCriticPolicy(network, seed=seed, greedy=True).act(observation, {}, first) for seed in (0, 1)]
    parameters, _, _ = network(torch.from_numpy(observation)[None], {}, torch.from_numpy(first)[None])
    np.testing.assert_array_equal(greedy[0][0], parameters[0].argmax(-1).numpy())
    np.testing.assert_array_equal(greedy[0][0], greedy[1][0])
    assert greedy[0][2] == {}


def test_a_factory_is_found_by_name_and_its_network_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_network.py").write_text(
        "import torch\n"
        "def make(observation_space, action_space):\n"
        "    inputs = observation_space['a'].shape[0]\n"
        "    class Sum(torch.nn.Module):\n"
        "        def __init__(self, outputs):\n"
        "            super().__init__()\n"
        "            self.linear = torch.nn.Linear(inputs, outputs)\n"
        "        def forward(self, observation):\n"
        "            return self.linear(observation['a'] + observation['b'])\n"
        "    return Sum(action_space.n), Sum(1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    space = spaces.Dict(a=VECTOR, b=VECTOR)
    options, env = NetworkOptions(network="my_network:make"), SpacePair(space, spaces.Discrete(2))
    network, other = (make_actor_critic(options, env, seed) for seed in (0, 1))
    policy = ActorCriticPolicy(other, seed=0)
    policy.load(export_weights(network))
    observation = {name: np.ones((B, 4), np.float32) * i for i, name in enumerate("ab")}
    action, _, extras = policy.act(observation, policy.initial_state(B), np.zeros(B, np.bool_))
    rows = {name: torch.from_numpy(x)[None] for name, x in observation.items()}
    parameters, _, _ = network(rows, {}, torch.zeros(1, B, dtype=torch.bool))
    expected = network.distribution.log_prob(parameters[0], torch.from_numpy(action))
    np.testing.assert_allclose(extras["log_prob"], expected.detach().numpy(), rtol=1e-4)
