"""Deterministic policy gradients: the actor follows the critic's clipped slope."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.functional.deterministic import deterministic_policy_loss

B, ACTIONS = 6, 3


def networks() -> tuple[nn.Module, nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        actor = nn.Sequential(nn.Linear(4, ACTIONS), nn.Tanh()).double()
        critic = nn.Sequential(nn.Linear(4 + ACTIONS, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        return actor, critic, torch.randn(B, 4, dtype=torch.float64)


def q(critic: nn.Module, observation: Tensor, actions: Tensor) -> Tensor:
    return critic(torch.cat([observation, actions], dim=-1)).squeeze(-1)


def test_without_clipping_the_loss_and_its_gradient_are_those_of_minus_q() -> None:
    actor, critic, observation = networks()
    losses, _ = deterministic_policy_loss(
        actions=actor(observation), critic=lambda a: q(critic, observation, a), clip=0.0
    )
    direct = -q(critic, observation, actor(observation))
    torch.testing.assert_close(losses, direct)
    parameters = list(actor.parameters())
    found = torch.autograd.grad(losses.mean(), parameters)
    torch.testing.assert_close(found, torch.autograd.grad(direct.mean(), parameters))


def test_the_gradient_is_that_of_finite_differences() -> None:
    _, critic, observation = networks()
    actions = torch.rand(B, ACTIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def loss(actions: Tensor) -> Tensor:
        return deterministic_policy_loss(actions=actions, critic=lambda a: q(critic, observation, a), clip=0.0).losses

    assert torch.autograd.gradcheck(loss, (actions,))


def test_the_critic_receives_no_gradient() -> None:
    actor, critic, observation = networks()
    losses, slopes = deterministic_policy_loss(actions=actor(observation), critic=lambda a: q(critic, observation, a))
    assert torch.autograd.grad(losses.sum(), list(critic.parameters()), allow_unused=True) == (None,) * 4
    assert not slopes.requires_grad


def test_the_actions_gradient_is_the_clipped_slope_of_q() -> None:
    actions = torch.zeros(2, 3, requires_grad=True)
    slope = torch.tensor([[3.0, -0.5, -4.0], [0.3, 0.2, 0.1]])
    losses, norms = deterministic_policy_loss(actions=actions, critic=lambda a: (slope * a).sum(-1), clip=1.0)
    (found,) = torch.autograd.grad(losses.sum(), actions)
    torch.testing.assert_close(found, -torch.tensor([[1.0, -0.5, -1.0], [0.3, 0.2, 0.1]]))
    torch.testing.assert_close(norms, slope.norm(dim=-1))


def test_following_the_loss_finds_the_best_action() -> None:
    best = torch.tensor([[0.3, -0.7, 0.1]])
    actions = torch.zeros(1, 3, requires_grad=True)
    for _ in range(200):
        losses, _ = deterministic_policy_loss(
            actions=actions, critic=lambda a: -10.0 * (a - best).square().sum(-1), clip=1.0
        )
        (gradient,) = torch.autograd.grad(losses.sum(), actions)
        actions = (actions - 0.02 * gradient).detach().requires_grad_()
    torch.testing.assert_close(actions.detach(), best, rtol=0.0, atol=0.02)
