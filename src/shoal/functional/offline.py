"""Learning from logged data: laws that keep values and policies near what the data holds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.functional.q import chosen
from shoal.functional.shapes import check_shapes


def expectile_loss(errors: Tensor, *, expectile: float) -> Tensor:
    """|τ − 1(u < 0)| · u² of errors u, element by element (Kostrikov 2022, eq. 5).

    The constant that it is least for is the τ-expectile of a target: the mean at τ = 0.5, the largest value as τ → 1.
    With errors Q − V, a value V learns what the better actions of the data are worth, and asks for no other ones.
    """
    return torch.where(errors < 0.0, 1.0 - expectile, expectile) * errors.square()


@torch.no_grad()
def advantage_weights(advantages: Tensor, *, sharpness: float, clip: float) -> Tensor:
    """min(exp(β · A), clip), element by element: how much each action of the data is worth imitating (Peng 2019;
    Kostrikov 2022, eq. 7).

    The exponent is clipped, not what comes of it: a large advantage would be infinity first. No gradient.
    """
    return (sharpness * advantages).clamp(max=math.log(clip)).exp()


def cloning_sums(q: Tensor) -> Tensor:
    """Σ|Q| and the number of values, [2]: these add up over learners, for `cloning_scale`. q [B]."""
    size = q.detach().abs().sum()
    return torch.stack([size, size.new_tensor(q.numel())])


def cloning_scale(sums: Tensor, *, alpha: float) -> Tensor:
    """λ = α / mean|Q| (Fujimoto 2021), of `cloning_sums` of all learners: 0-d, without gradient.

    λQ is of the size α whatever rewards are, so that α alone says how much values count against imitation.
    """
    check_shapes((2,), sums=sums)
    size = sums[0] / sums[1].clamp(min=1.0)
    return alpha / size.clamp(min=1e-8)


def conservative_gap(*, drawn: Tensor, log_density: Tensor, data: Tensor) -> Tensor:
    """log ∫ exp Q(s, a) da − Q(s, a of the data): by how much actions that the data has not may look better than its
    own (Kumar 2020, eq. 4, and appendix F for the integral). → [C, B]

    drawn [C, N, B]: what each of C critics gives to N actions at the same states, log_density [N, B]: of these actions,
    whoever drew them; data [C, B]. The integral is estimated as the mean of exp(Q − log density).
    """
    critics, draws, rows = drawn.shape
    check_shapes((draws, rows), log_density=log_density)
    check_shapes((critics, rows), data=data)
    return torch.logsumexp(drawn - log_density, dim=1) - math.log(draws) - data


def discrete_conservative_gap(q: Tensor, *, actions: Tensor) -> Tensor:
    """log Σ_a exp Q(s, a) − Q(s, a of the data) (Kumar 2020, eq. 4). q [B, A], actions [B] from 0 → [B].

    It is the cross-entropy of the data's actions under the softmax of Q: never below 0.
    """
    check_shapes(q.shape[:1], actions=actions)
    return torch.logsumexp(q, dim=-1) - chosen(q, actions=actions)
