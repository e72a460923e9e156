"""The built-in actor-critic: recurrence through episode ends, initial weights, and what is exported of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from network_options import NetworkOptions, SpacePair
from shoal.nets.actor_critic import LSTM, ActorCritic
from shoal.nets.building import make_actor_critic
from shoal.nets.weights import export_weights, named_tensors

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
ENV = SpacePair(VECTOR, spaces.Discrete(3))
T, B = 9, 5


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


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_global_state() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    networks = [make_actor_critic(NetworkOptions(), ENV, seed) for seed in (1, 1, 2)]
    torch.testing.assert_close(torch.rand(3), expected)
    one, same, other = (named_tensors(network)["torso.0.weight"] for network in networks)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_exported_weights_are_copies() -> None:
    network = make_actor_critic(NetworkOptions(), ENV, 1)
    weights = export_weights(network)
    before = weights["torso.0.weight"].copy()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(weights["torso.0.weight"], before)
