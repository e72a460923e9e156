"""Laws of learning from data: expectiles, weights of advantages, TD3+BC's scale, and CQL's gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.functional.offline import (
    advantage_weights,
    cloning_scale,
    cloning_sums,
    conservative_gap,
    discrete_conservative_gap,
    expectile_loss,
)


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def best_constant(sample: Tensor, expectile: float) -> float:
    """Where the loss of errors sample − v is least, among 20,000 candidates."""
    candidates = torch.linspace(float(sample.min()), float(sample.max()), 20_001, dtype=torch.float64)
    losses = expectile_loss(sample.unsqueeze(0) - candidates.unsqueeze(1), expectile=expectile).mean(1)
    return float(candidates[losses.argmin()])


def test_an_expectile_of_one_half_is_the_mean() -> None:
    sample = values(60)
    assert best_constant(sample, 0.5) == pytest.approx(float(sample.mean()), abs=1e-3)
    torch.testing.assert_close(expectile_loss(sample, expectile=0.5), 0.5 * sample.square())


def test_an_expectile_balances_what_lies_above_and_below() -> None:
    """τ Σ(x − v)₊ = (1 − τ) Σ(v − x)₊, its definition (Newey 1987)."""
    sample = values(60)
    for expectile in (0.1, 0.7, 0.9):
        found = best_constant(sample, expectile)
        above = expectile * (sample - found).clamp(min=0.0).sum()
        below = (1.0 - expectile) * (found - sample).clamp(min=0.0).sum()
        assert float(above) == pytest.approx(float(below), rel=2e-3)


def test_an_expectile_near_one_is_nearly_the_largest_value() -> None:
    sample = values(60)
    assert float(sample.max()) - best_constant(sample, 0.9999) < 0.02 * float(sample.max() - sample.min())


def test_a_weight_is_the_exponential_of_the_advantage_up_to_the_clip_and_carries_no_gradient() -> None:
    advantages = torch.tensor([-2.0, 0.0, 1.0, 1.5, 1.6, 1e6], dtype=torch.float64, requires_grad=True)
    found = advantage_weights(advantages, sharpness=3.0, clip=100.0)
    np.testing.assert_allclose(found, [math.exp(-6.0), 1.0, math.exp(3.0), math.exp(4.5), 100.0, 100.0])
    assert not found.requires_grad


def test_values_times_the_cloning_scale_are_of_the_size_alpha_whatever_their_unit_is() -> None:
    q = values(40).requires_grad_()
    for unit in (1.0, 1e-3, 1e4):
        scale = cloning_scale(cloning_sums(q * unit), alpha=2.5)
        assert float((scale * q.detach() * unit).abs().mean()) == pytest.approx(2.5)
        assert not scale.requires_grad


def test_the_cloning_scale_of_two_learners_is_that_of_one() -> None:
    q = values(40)
    parts = cloning_sums(q[:13]) + cloning_sums(q[13:])
    torch.testing.assert_close(cloning_scale(parts, alpha=2.5), cloning_scale(cloning_sums(q), alpha=2.5))


def test_values_that_are_all_zero_give_a_finite_scale() -> None:
    assert torch.isfinite(cloning_scale(cloning_sums(torch.zeros(4)), alpha=2.5))


def test_the_gap_of_a_value_without_actions_is_the_volume_of_the_actions() -> None:
    """log ∫ exp c da − c over [−1, 1]ⁿ is n log 2, from uniform actions of density 0.5ⁿ without any error."""
    parts = 3
    drawn, data = torch.full((2, 10, 5), 7.0), torch.full((2, 5), 7.0)
    gap = conservative_gap(drawn=drawn, log_density=torch.full((10, 5), parts * math.log(0.5)), data=data)
    torch.testing.assert_close(gap, torch.full((2, 5), parts * math.log(2.0)))


def test_the_integral_is_the_same_whoever_draws_the_actions() -> None:
    """∫ exp(−a²) da over [−1, 1], by uniform actions and by those of a triangle's density."""
    random = torch.Generator().manual_seed(0)
    points = torch.linspace(-1.0, 1.0, 200_001, dtype=torch.float64)
    exact = torch.logsumexp(-points.square(), 0) + math.log(2.0 / len(points))
    uniform = 2.0 * torch.rand(200_000, generator=random, dtype=torch.float64) - 1.0
    peaked = torch.rand(200_000, generator=random, dtype=torch.float64)
    peaked = peaked + torch.rand(200_000, generator=random, dtype=torch.float64) - 1.0
    densities = [torch.full_like(uniform, math.log(0.5)), torch.log1p(-peaked.abs())]
    for action, log_density in zip((uniform, peaked), densities):
        drawn = -action.square().view(1, -1, 1)
        gap = conservative_gap(drawn=drawn, log_density=log_density.view(-1, 1), data=torch.zeros(1, 1).double())
        assert float(gap) == pytest.approx(float(exact), abs=5e-3)


def test_the_gaps_slope_pushes_down_what_is_drawn_by_its_share_and_the_data_up() -> None:
    drawn, log_density = values(2, 6, 5).requires_grad_(), values(6, 5, seed=1)
    data = values(2, 5, seed=2).requires_grad_()
    gap = conservative_gap(drawn=drawn, log_density=log_density, data=data)
    for_drawn, for_data = torch.autograd.grad(gap.sum(), (drawn, data))
    torch.testing.assert_close(for_drawn, torch.softmax((drawn - log_density).detach(), dim=1))
    torch.testing.assert_close(for_data, -torch.ones_like(data))


def test_the_discrete_gap_is_the_cross_entropy_of_the_datas_actions() -> None:
    q, actions = values(30, 4), torch.arange(30) % 4
    gap = discrete_conservative_gap(q, actions=actions)
    torch.testing.assert_close(gap, torch.nn.functional.cross_entropy(q, actions, reduction="none"))
    assert (gap > 0.0).all()
    torch.testing.assert_close(discrete_conservative_gap(q + 100.0, actions=actions), gap)


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match="log_density has the shape"):
        conservative_gap(drawn=torch.zeros(2, 6, 5), log_density=torch.zeros(6), data=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="actions has the shape"):
        discrete_conservative_gap(torch.zeros(4, 3), actions=torch.zeros(4, 1))
