"""Actors and critics for continuous control."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from network_options import NetworkOptions, SpacePair
from shoal.errors import UserError
from shoal.functional.deterministic import deterministic_policy_loss
from shoal.nets.control import (
    LOG_STD_RANGE,
    ActionUnits,
    Actor,
    Critic,
    CriticKind,
    GaussianActor,
    TwinCritic,
    make_bodies,
)
from shoal.nets.weights import export_weights, import_weights

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


def make(
    seed: int = 0,
    kind: CriticKind = "scalar",
    atoms: int = 51,
    actions: spaces.Space[Any] = ACTIONS,
    **options: Any,
) -> tuple[Actor, Critic]:
    outputs = 1 if kind == "scalar" else atoms
    env = SpacePair(VECTOR, actions)
    given = NetworkOptions(**{"activation": "relu", "layer_norm": True, **options})
    actor, critic = make_bodies(given, env, seed, critic_outputs=outputs)
    return Actor(actor, actions), Critic(critic, kind, atoms)


def observations(count: int = B) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def test_action_units_map_the_bounds_to_minus_one_and_one_and_back() -> None:
    units = ActionUnits(ACTIONS)
    bounds = torch.from_numpy(np.stack([ACTIONS.low, ACTIONS.high, (ACTIONS.low + ACTIONS.high) / 2]))
    expected = torch.tensor([[-1.0] * 3, [1.0] * 3, [0.0] * 3])
    assert torch.equal(units.to_units(bounds), expected)
    assert torch.equal(units.to_environment(expected), bounds)


def test_actors_stay_within_the_bounds_whatever_they_see() -> None:
    actor, _ = make(actor_hidden=(16, 8))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter *= 50.0
        action = actor.units.to_environment(actor(1e6 * observations())).numpy()
    assert action.shape == (B, 1, 3)
    assert np.all((action >= ACTIONS.low) & (action <= ACTIONS.high))
    assert np.abs(action - ACTIONS.high).min() < 1e-3  # and reach them


def test_actors_begin_near_the_middle_of_the_bounds() -> None:
    actor, _ = make()
    assert float(actor(observations()).detach().abs().max()) < 0.1


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3), spaces.Box(1.0, 1.0, (2,))])
def test_deterministic_policies_need_bounded_actions(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"The action space must be a Box of floats|Every action needs finite bounds"):
        make(actions=space)


def test_each_kind_of_critic_gives_its_outputs_and_their_expectation() -> None:
    action = torch.rand(B, 3, generator=torch.Generator().manual_seed(1))
    for kind, shape in (("scalar", (B,)), ("categorical", (B, 11)), ("quantile", (B, 11))):
        _, critic = make(kind=kind, atoms=11, critic_hidden=(16, 8))
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
    critics = [make(seed, "categorical")[1] for seed in (0, 1)]
    critics[0].set_support(-3.0, 4.0)
    import_weights(critics[1], export_weights(critics[0]))
    assert torch.equal(critics[1].support, critics[0].support)
    assert float(critics[1].support[-1]) == 4.0


@pytest.mark.parametrize("kind", ["scalar", "categorical", "quantile"])
def test_the_slope_of_each_critic_by_the_actions_is_that_of_finite_differences(kind: str) -> None:
    _, critic = make(kind=kind, atoms=5, critic_hidden=(6,))
    critic, observation = critic.double(), observations()
    actions = torch.rand(B, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()

    def losses(actions: torch.Tensor) -> torch.Tensor:
        return deterministic_policy_loss(
            actions=actions, critic=lambda a: critic.expected(critic(observation, a)), clip=0.0
        ).losses

    assert torch.autograd.gradcheck(losses, (actions,))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    pairs = [make(seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.random.get_rng_state(), before)
    actions = [actor(observations()) for actor, _ in pairs]
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2])


def test_the_users_pair_is_squashed_and_checked(user: str) -> None:
    actor, critic = make(network=f"{user}:pair")
    action = actor(100.0 * observations())
    assert float(action.detach().abs().max()) <= 1.0
    assert critic(observations(), action).shape == (B,)
    _, critic = make(network=f"{user}:atoms", kind="quantile", atoms=11)
    assert critic(observations(), action).shape == (B, 11)
    with pytest.raises(UserError, match=r"\[2, 2\].*\[2, 3\]"):
        make(network=f"{user}:wrong")
    with pytest.raises(UserError, match=r"\[2, 1\].*\[2, 51\]"):
        make(network=f"{user}:pair", kind="categorical")
    with pytest.raises(UserError, match="pair"):
        make(network=f"{user}:single")


def test_twin_critics_are_two_and_the_smaller_of_both_is_the_expected_return() -> None:
    action = torch.rand(B, 3, generator=torch.Generator().manual_seed(1))
    first, second = make_bodies(NetworkOptions(), SpacePair(VECTOR, ACTIONS), 0, critics=2)[1:]
    with torch.no_grad():
        first.layers[-1].weight *= 100.0  # type: ignore[union-attr, index]
    twins = TwinCritic(first, second)
    values = twins(observations(), action)
    torch.testing.assert_close(values[0], first(observations(), action).squeeze(-1))
    torch.testing.assert_close(values[1], second(observations(), action).squeeze(-1))
    assert not torch.allclose(values[0], values[1])
    torch.testing.assert_close(twins.expected_return(observations(), action), torch.minimum(values[0], values[1]))


def test_a_gaussian_actors_outputs_are_means_and_then_bounded_log_deviations() -> None:
    (body, _) = make_bodies(NetworkOptions(activation="relu"), SpacePair(VECTOR, ACTIONS), 0, actor_outputs=2)
    actor = GaussianActor(body, ACTIONS)
    raw = body(1e6 * observations())
    mean, log_std = actor(1e6 * observations())
    torch.testing.assert_close(mean, raw[:, :3])
    torch.testing.assert_close(log_std, raw[:, 3:].clamp(*LOG_STD_RANGE))
    assert (log_std.max().item(), log_std.min().item()) == (LOG_STD_RANGE[1], LOG_STD_RANGE[0])


def test_where_there_are_two_critics_the_users_factory_is_called_twice(user: str) -> None:
    _, first, second = make_bodies(NetworkOptions(network=f"{user}:pair"), SpacePair(VECTOR, ACTIONS), 0, critics=2)
    assert first is not second
    assert not torch.equal(first.linear.weight, second.linear.weight)  # type: ignore[union-attr, arg-type]
