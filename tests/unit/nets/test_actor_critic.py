"""The built-in network: layers, recurrence, and its numpy twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from shoal.nets.acting import ActorPolicy
from shoal.nets.numpy_policy import NumpyPolicy, supported
from torch import nn

from shoal.nets.actor_critic import LSTM, ActorCritic
from shoal.nets.building import export_weights, make_network, named_tensors
from shoal.nets.dense import Dense

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
T, B = 9, 5


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("inputs", [3, 20])
def test_a_dense_layer_is_linear_and_activation_with_the_same_gradients(activation: str, inputs: int) -> None:
    layer = Dense(inputs, 6, activation)
    nn.init.normal_(layer.bias)
    plain = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh() if activation == "tanh" else nn.ReLU())
    plain[0].load_state_dict(layer.state_dict())
    x = torch.randn(11, inputs, requires_grad=True)
    weight = torch.randn(11, 6)
    torch.testing.assert_close(layer(x), plain(x))
    found = torch.autograd.grad((layer(x) * weight).sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad((plain(x) * weight).sum(), [x, *plain.parameters()])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("inputs", [3, 20])
def test_a_dense_layers_gradient_agrees_with_finite_differences(inputs: int) -> None:
    layer = Dense(inputs, 4, "tanh").double()
    x = torch.randn(5, inputs, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda x, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, (x,)),
        (x, *[parameter.detach().requires_grad_() for parameter in layer.parameters()]),
    )


def test_rows_without_a_reset_inside_give_outputs_states_and_gradients_of_stepping() -> None:
    """Columns whose neighbour is reset inside are stepped; without that neighbour they are one call."""
    torch.manual_seed(0)
    core = LSTM(4, 6)
    inputs = torch.randn(T, B + 1, 4)
    first = torch.zeros(T, B + 1, dtype=torch.bool)
    first[0, 1] = first[3, B] = True
    start = {name: torch.randn(B + 1, 6) for name in core.initial_state(1)}

    def results(columns: int) -> list[torch.Tensor]:
        x = inputs[:, :columns].clone().requires_grad_()
        before = {name: tensor[:columns] for name, tensor in start.items()}
        outputs, end = core(x, before, first[:, :columns])
        loss = outputs[:, :B].square().sum() + end["cell"][:B].sum()
        gradients = torch.autograd.grad(loss, [x, *core.parameters()])
        return [outputs[:, :B], end["hidden"][:B], end["cell"][:B], gradients[0][:, :B], *gradients[1:]]

    torch.testing.assert_close(results(B), results(B + 1))


@pytest.mark.parametrize("count", [1, B])
def test_a_recurrent_batch_equals_stepping_with_episode_ends_inside(count: int) -> None:
    torch.manual_seed(0)
    network = ActorCritic(VECTOR, spaces.Discrete(3), hidden=(8,), lstm=6)
    observation = torch.randn(T, count, 4)
    first = torch.rand(T, count) < 0.3
    start = {name: torch.randn_like(tensor) for name, tensor in network.initial_state(count).items()}
    parameters, values, end = network(observation, start, first)
    state = start
    for t in range(T):
        stepped = network(observation[t : t + 1], state, first[t : t + 1])
        state = stepped[2]
        torch.testing.assert_close(stepped[0][0], parameters[t])
        torch.testing.assert_close(stepped[1][0], values[t])
    torch.testing.assert_close(state, end)


def test_nothing_of_an_episode_reaches_the_next() -> None:
    torch.manual_seed(0)
    network = ActorCritic(VECTOR, spaces.Discrete(3), hidden=(8,), lstm=6)
    observation = torch.randn(T, B, 4)
    first = torch.zeros(T, B, dtype=torch.bool)
    first[4] = True
    start = {name: torch.randn_like(tensor) for name, tensor in network.initial_state(B).items()}
    whole, _, _ = network(observation, start, first)
    second, _, _ = network(observation[4:], network.initial_state(B), torch.zeros(T - 4, B, dtype=torch.bool))
    torch.testing.assert_close(whole[4:], second)
    joined, _, _ = network(observation, start, torch.zeros_like(first))
    assert not torch.allclose(joined[4:], second)  # the state does matter where it is kept


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
    fast = NumpyPolicy(ActorCritic(observation_space, action_space, **options))
    fast.load(export_weights(named_tensors(network)))
    with torch.no_grad():
        expected, _, _ = network(torch.from_numpy(observation)[None], {}, torch.zeros(1, B, dtype=torch.bool))
    np.testing.assert_allclose(fast(observation), expected[0].numpy(), rtol=1e-4, atol=1e-5)


def test_a_recurrent_policy_acts_as_its_network_in_training() -> None:
    """Acting row by row through numpy states gives the log-probabilities that the learner finds on the batch."""
    network = make_network(VECTOR, spaces.Discrete(3), seed=3, hidden=(8,), lstm=6)
    policy = ActorPolicy(make_network(VECTOR, spaces.Discrete(3), seed=4, hidden=(8,), lstm=6), seed=0)
    policy.load(export_weights(named_tensors(network)))
    random = np.random.default_rng(0)
    observation = random.standard_normal((T, B, 4)).astype(np.float32)
    first = random.random((T, B)) < 0.3
    state = policy.initial_state(B)
    actions, log_probs = [], []
    for t in range(T):
        action, state, extras = policy.act(observation[t], state, first[t])
        actions.append(action)
        log_probs.append(extras["log_prob"])
    parameters, _, _ = network(torch.from_numpy(observation), network.initial_state(B), torch.from_numpy(first))
    expected = network.distribution.log_prob(parameters, torch.from_numpy(np.stack(actions)))
    np.testing.assert_allclose(np.stack(log_probs), expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_greedy_policy_takes_the_most_probable_action_and_draws_nothing() -> None:
    network = make_network(VECTOR, spaces.Discrete(3), seed=3)
    observation = np.random.default_rng(0).standard_normal((B, 4)).astype(np.float32)
    first = np.zeros(B, np.bool_)
    greedy = [ActorPolicy(network, seed=seed, greedy=True).act(observation, {}, first) for seed in (0, 1)]
    parameters, _, _ = network(torch.from_numpy(observation)[None], {}, torch.from_numpy(first)[None])
    np.testing.assert_array_equal(greedy[0][0], parameters[0].argmax(-1).numpy())
    np.testing.assert_array_equal(greedy[0][0], greedy[1][0])
    assert greedy[0][2] == {}


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_global_state() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    networks = [make_network(VECTOR, spaces.Discrete(3), seed=seed) for seed in (1, 1, 2)]
    torch.testing.assert_close(torch.rand(3), expected)
    one, same, other = (named_tensors(network)["torso.0.weight"] for network in networks)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_exported_weights_are_copies() -> None:
    network = make_network(VECTOR, spaces.Discrete(3), seed=1)
    weights = export_weights(named_tensors(network))
    before = weights["torso.0.weight"].copy()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(weights["torso.0.weight"], before)
