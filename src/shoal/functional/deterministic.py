"""Deterministic policy gradients: the actor follows the critic's slope at its own actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes


class DeterministicLoss(NamedTuple):
    losses: Tensor  # [B], −Q(s, π(s)); its gradient by the actions is that of −Q, clipped
    slopes: Tensor  # [B], norm of dQ/da before clipping; carries no gradient


def deterministic_policy_loss(
    *, actions: Tensor, critic: Callable[[Tensor], Tensor], clip: float = 1.0
) -> DeterministicLoss:
    """The actor's loss (Silver 2014): actions [B, n] of the actor, critic: actions [B, n] → expected returns [B].

    dQ/da is clipped element by element to ± clip (0: not at all). The critic's parameters receive no gradient; it must
    treat the items of a batch apart from each other.
    """
    proposal = actions.detach().requires_grad_()
    with torch.enable_grad():
        value = critic(proposal)
        check_shapes(actions.shape[:1], critic=value)
        (slope,) = torch.autograd.grad(value.sum(), proposal)
    norm = torch.linalg.vector_norm(slope, dim=-1)
    if clip:
        slope = slope.clamp(-clip, clip)
    # A line through −Q with the clipped slope: the value is −Q, the gradient what it should be.
    losses = -value.detach() - (slope * (actions - proposal.detach())).sum(-1)
    return DeterministicLoss(losses, norm)


def squashed_policy_loss(
    *, raw: Tensor, critic: Callable[[Tensor], Tensor], clip: float = 0.0, saturation_cost: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The mean loss of actions tanh(raw) [B, n], 0-d, and norms of dQ/da before clipping [B].

    Where tanh is saturated its slope is nearly 0, and an actor may stay there for good: squares of `raw` cost
    something. A clip of 0 is none.
    """
    losses, slopes = deterministic_policy_loss(actions=torch.tanh(raw), critic=critic, clip=clip)
    return losses.mean() + saturation_cost * raw.square().sum(-1).mean(), slopes
