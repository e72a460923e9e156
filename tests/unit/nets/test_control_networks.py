"""Actors and critics for continuous control."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shoal.errors import UserError
from shoal.functional.deterministic import deterministic_policy_loss
from shoal.nets.building import export_weights, import_weights, named_tensors
from shoal.nets.control import ActionUnits, make_control_networks
from shoal.nets.dense import NormalisedDense

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTIONS = spaces.Box(np.array([[-2.0, 0.0, -1.0]], np.float32), np.array([[2.0, 10.0, 3.0]], np.float32))
B = 5

USER_CODE = """
import torch
from torch import nn

class Critic(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.linear = nn.Linear(7, outputs)
    def forward(self, observation, action):
        return self.linear(torch.cat([observation, action], -1))

def pair(observation_space, action_space): return nn.Linear(4, 3), Critic(1)
def atoms(observation_space, action_space): return nn.Linear(4, 3), Critic(11)
def wrong(observation_space, action_space): return nn.Linear(4, 2), Critic(1)
def single(observation_space, action_space): return nn.Linear(4, 3)
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_control_networks.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_control_networks", raising=False)
    return "user_control_networks"


def observations(count: int = B) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def test_action_units_map_the_bounds_to_minus_one_and_one_and_back() -> None:
    units = ActionUnits(ACTIONS)
    bounds = torch.from_numpy(np.stack([ACTIONS.low, ACTIONS.high, (ACTIONS.low + ACTIONS.high) / 2]))
    expected = torch.tensor([[-1.0] * 3, [1.0] * 3, [0.0] * 3])
    assert torch.equal(units.to_units(bounds), expected)
    assert torch.equal(units.to_environment(expected), bounds)


def test_actors_stay_within_the_bounds_whatever_they_see() -> None:
    actor, _ = make_control_networks(VECTOR, ACTIONS, seed=0, actor_hidden=(16, 8))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter *= 50.0
        action = actor.units.to_environment(actor(1e6 * observations())).numpy()
    assert action.shape == (B, 1, 3)
    assert np.all((action >= ACTIONS.low) & (action <= ACTIONS.high))
    assert np.abs(action - ACTIONS.high).min() < 1e-3  # and reach them


def test_actors_begin_near_the_middle_of_the_bounds() -> None:
    actor, _ = make_control_networks(VECTOR, ACTIONS, seed=0)
    assert float(actor(observations()).detach().abs().max()) < 0.1


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3), spaces.Box(1.0, 1.0, (2,))])
def test_deterministic_policies_need_bounded_actions(space: spaces.Space) -> None:
    with pytest.raises(UserError, match="deterministic policy needs"):
        make_control_networks(VECTOR, space, seed=0)


def test_each_kind_of_critic_gives_its_outputs_and_their_expectation() -> None:
    action = torch.rand(B, 3, generator=torch.Generator().manual_seed(1))
    for kind, shape in (("scalar", (B,)), ("categorical", (B, 11)), ("quantile", (B, 11))):
        _, critic = make_control_networks(VECTOR, ACTIONS, seed=0, critic=kind, atoms=11, critic_hidden=(16, 8))
        outputs = critic(observations(), action)
        assert outputs.shape == shape
        if kind == "categorical":
            critic.set_support(-5.0, 15.0)
            torch.testing.assert_close(critic.support, torch.linspace(-5.0, 15.0, 11))
            expected = (torch.softmax(outputs, -1) * torch.linspace(-5.0, 15.0, 11)).sum(-1)
        else:
            expected = outputs if kind == "scalar" else outputs.mean(-1)
        torch.testing.assert_close(critic.expected(outputs), expected)


def test_the_support_travels_with_the_weights() -> None:
    critics = [make_control_networks(VECTOR, ACTIONS, seed=seed, critic="categorical")[1] for seed in (0, 1)]
    tensors = [named_tensors(critic) for critic in critics]
    critics[0].set_support(-3.0, 4.0)
    import_weights(tensors[1], export_weights(tensors[0]))
    assert torch.equal(critics[1].support, critics[0].support)
    assert float(critics[1].support[-1]) == 4.0


def test_a_support_whose_ends_are_swapped_is_refused() -> None:
    _, critic = make_control_networks(VECTOR, ACTIONS, seed=0, critic="categorical")
    with pytest.raises(UserError, match="--support-low 1 must lie below --support-high -1"):
        critic.set_support(1.0, -1.0)


@pytest.mark.parametrize("kind", ["scalar", "categorical", "quantile"])
def test_the_slope_of_each_critic_by_the_actions_is_that_of_finite_differences(kind: str) -> None:
    _, critic = make_control_networks(VECTOR, ACTIONS, seed=0, critic=kind, atoms=5, critic_hidden=(6,))
    critic, observation = critic.double(), observations()
    actions = torch.rand(B, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()

    def losses(actions: torch.Tensor) -> torch.Tensor:
        return deterministic_policy_loss(actions, lambda a: critic.expected(critic(observation, a)), clip=None).losses

    assert torch.autograd.gradcheck(losses, (actions,))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    pairs = [make_control_networks(VECTOR, ACTIONS, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.random.get_rng_state(), before)
    actions = [actor(observations()) for actor, _ in pairs]
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2])


def test_the_users_pair_is_squashed_and_checked(user: str) -> None:
    actor, critic = make_control_networks(VECTOR, ACTIONS, seed=0, network=f"{user}:pair")
    action = actor(100.0 * observations())
    assert float(action.detach().abs().max()) <= 1.0
    assert critic(observations(), action).shape == (B,)
    _, critic = make_control_networks(VECTOR, ACTIONS, seed=0, network=f"{user}:atoms", critic="quantile", atoms=11)
    assert critic(observations(), action).shape == (B, 11)
    with pytest.raises(UserError, match=r"\[2, 2\].*\[2, 3\]"):
        make_control_networks(VECTOR, ACTIONS, seed=0, network=f"{user}:wrong")
    with pytest.raises(UserError, match=r"\[2, 1\].*\[2, 51\]"):
        make_control_networks(VECTOR, ACTIONS, seed=0, network=f"{user}:pair", critic="categorical")
    with pytest.raises(UserError, match="pair"):
        make_control_networks(VECTOR, ACTIONS, seed=0, network=f"{user}:single")
    with pytest.raises(UserError, match="no critic"):
        make_control_networks(VECTOR, ACTIONS, seed=0, critic="gaussian")


@pytest.mark.parametrize("inputs", [3, 20])
def test_a_normalised_layer_is_linear_layer_normalisation_and_tanh_with_the_same_gradients(inputs: int) -> None:
    layer = NormalisedDense(inputs, 6)
    for vector in (layer.bias, layer.scale, layer.shift):
        nn.init.normal_(vector)
    plain = nn.Sequential(nn.Linear(inputs, 6), nn.LayerNorm(6), nn.Tanh())
    with torch.no_grad():
        for own, other in zip(layer.parameters(), plain.parameters()):
            other.copy_(own)
    x = torch.randn(11, inputs, requires_grad=True)
    weight = torch.randn(11, 6)
    torch.testing.assert_close(layer(x), plain(x))
    found = torch.autograd.grad((layer(x) * weight).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, torch.autograd.grad((plain(x) * weight).sum(), [x, *plain.parameters()]))
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    torch.testing.assert_close(torch.autograd.grad((layer(x) * weight).sum(), [x])[0], found[0])
