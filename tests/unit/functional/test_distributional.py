"""Quantile regression and categorical projections against direct sums."""

from __future__ import annotations

import pytest
import torch

from shoal.functional import distributional
from shoal.functional.distributional import (
    categorical_loss,
    categorical_mean,
    mass_outside,
    project,
    quantile_huber_loss,
    quantile_midpoints,
    quantile_priorities,
)

B, N, M = 5, 4, 6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kappa", [1.0, 0.5])
def test_quantile_loss_is_a_mean_over_targets_and_a_sum_over_predictions(kappa: float) -> None:
    predicted, targets = random(B, N), random(B, M, seed=1)
    losses = quantile_huber_loss(predicted=predicted, targets=targets, kappa=kappa)
    priorities = quantile_priorities(predicted=predicted, targets=targets)
    for b in range(B):
        loss = size = 0.0
        for i in range(N):
            for j in range(M):
                u = float(targets[b, j] - predicted[b, i])
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                loss += abs((2 * i + 1) / (2 * N) - (u < 0)) * huber / kappa / M
                size += abs(u) / (N * M)
        assert float(losses[b]) == pytest.approx(loss)
        assert float(priorities[b]) == pytest.approx(size)


def test_the_gradient_of_the_quantile_loss_is_that_of_finite_differences() -> None:
    predicted, targets = random(B, N).requires_grad_(), random(B, M, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: quantile_huber_loss(predicted=x, targets=targets.detach(), kappa=0.7), (predicted,)
    )
    losses = quantile_huber_loss(predicted=predicted, targets=targets)
    assert torch.autograd.grad(losses.sum(), targets, allow_unused=True) == (None,)
    assert not quantile_priorities(predicted=predicted, targets=targets).requires_grad


def test_the_quantile_loss_of_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted, targets = random(B, N).requires_grad_(), random(B, M, seed=1)
    whole = quantile_huber_loss(predicted=predicted, targets=targets)
    priorities = quantile_priorities(predicted=predicted, targets=targets)
    (gradient,) = torch.autograd.grad(whole.sum(), predicted)
    monkeypatch.setattr(distributional, "_PAIRS", 2 * N * M)
    pieces = quantile_huber_loss(predicted=predicted, targets=targets)
    torch.testing.assert_close(pieces, whole)
    torch.testing.assert_close(quantile_priorities(predicted=predicted, targets=targets), priorities)
    torch.testing.assert_close(torch.autograd.grad(pieces.sum(), predicted)[0], gradient)


def test_quantile_regression_finds_the_quantiles_of_its_targets() -> None:
    targets = torch.linspace(0.0, 100.0, 1001, dtype=torch.float64).unsqueeze(0)
    predicted = torch.full((1, N), 50.0, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        (gradient,) = torch.autograd.grad(quantile_huber_loss(predicted=predicted, targets=targets).sum(), predicted)
        predicted = (predicted - 20.0 * gradient).detach().requires_grad_()
    torch.testing.assert_close(predicted.detach()[0], 100.0 * quantile_midpoints(N, like=targets), rtol=0.0, atol=0.5)


def direct_projection(p: torch.Tensor, r: float, discount: float, support: torch.Tensor) -> list[float]:
    """Bellemare 2017, eq. 7: Σ_j [1 − |clip(r + γ z_j) − z_i| / Δ] p_j, each bracket limited to 0..1."""
    gap = float(support[1] - support[0])
    result = []
    for z in support.tolist():
        moved = [min(max(r + discount * other, float(support[0])), float(support[-1])) for other in support.tolist()]
        result.append(sum(min(max(1 - abs(m - z) / gap, 0.0), 1.0) * float(q) for m, q in zip(moved, p)))
    return result


def test_projection_is_the_papers_formula_with_each_items_own_discount() -> None:
    support = torch.linspace(-3.0, 3.0, 7, dtype=torch.float64)
    p = torch.softmax(random(6, 7), -1)
    returns = torch.tensor([0.0, 0.3, -1.7, 2.0, 50.0, -50.0], dtype=torch.float64)
    discounts = torch.tensor([1.0, 0.99, 0.9**5, 0.0, 0.9, 0.9], dtype=torch.float64)
    found = project(probabilities=p, returns=returns, discounts=discounts, support=support)
    expected = [direct_projection(p[b], float(returns[b]), float(discounts[b]), support) for b in range(6)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(found.sum(-1), torch.ones(6, dtype=torch.float64))


def test_projection_keeps_the_mean_as_long_as_nothing_leaves_the_support() -> None:
    support = torch.linspace(-10.0, 10.0, 51)
    p = torch.softmax(random(B, 51).float(), -1)
    returns, discounts = torch.tensor([0.5, -0.5, 0.0, 0.2, 0.9]), torch.full((B,), 0.9)
    expected = returns + discounts * (p * support).sum(-1)
    torch.testing.assert_close(
        (project(probabilities=p, returns=returns, discounts=discounts, support=support) * support).sum(-1), expected
    )


def test_a_terminal_return_is_a_single_spike_shared_by_its_neighbours() -> None:
    support = torch.linspace(0.0, 4.0, 5)
    p = torch.full((3, 5), 0.2)
    found = project(probabilities=p, returns=torch.tensor([1.25, 4.0, 0.0]), discounts=torch.zeros(3), support=support)
    expected = [[0.0, 0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_return_that_is_not_a_number_gives_no_distribution_and_leaves_the_others_theirs() -> None:
    support = torch.linspace(-1.0, 1.0, 3)
    projected = project(
        probabilities=torch.full((2, 3), 1.0 / 3.0),
        returns=torch.tensor([torch.nan, 0.0]),
        discounts=torch.ones(2),
        support=support,
    )
    assert projected[0].isnan().any()
    torch.testing.assert_close(projected[1], torch.full((3,), 1.0 / 3.0))


def test_mass_outside_is_the_probability_that_the_projection_clips() -> None:
    support = torch.linspace(0.0, 4.0, 5)
    p = torch.full((4, 5), 0.2)
    returns, discounts = torch.tensor([0.0, 1.5, 9.0, -1.5]), torch.tensor([1.0, 1.0, 0.0, 1.0])
    torch.testing.assert_close(
        mass_outside(probabilities=p, returns=returns, discounts=discounts, support=support),
        torch.tensor([0.0, 0.4, 1.0, 0.4]),
    )


def test_the_categorical_loss_is_the_cross_entropy_and_its_gradient_that_of_finite_differences() -> None:
    logits, targets = random(B, N), torch.softmax(random(B, N, seed=1), -1)
    log_probs = torch.log_softmax(logits, -1)
    expected = [-sum(float(targets[b, k] * log_probs[b, k]) for k in range(N)) for b in range(B)]
    torch.testing.assert_close(categorical_loss(logits=logits, targets=targets).tolist(), expected)
    logits.requires_grad_()
    targets.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: categorical_loss(logits=x, targets=targets), (logits,))
    assert torch.autograd.grad(categorical_loss(logits=logits, targets=targets).sum(), targets, allow_unused=True) == (
        None,
    )


def test_the_categorical_mean_is_the_expectation_over_the_support() -> None:
    logits = torch.log(torch.tensor([[0.25, 0.25, 0.5]]))
    torch.testing.assert_close(categorical_mean(logits, support=torch.tensor([0.0, 2.0, 4.0])), torch.tensor([2.5]))
