"""Losses: means over valid rows, with the gradients their formulas promise."""

from __future__ import annotations

import torch

from shoal.functional.policy_gradient import entropy_bonus, masked_mean, policy_gradient_loss, value_loss

T, B = 4, 3

LOSSES = (
    lambda x, y, **over: policy_gradient_loss(log_prob=x, advantages=y, **over),
    lambda x, y, **over: value_loss(values=x, targets=y, **over),
)


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T, B, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(T, B, generator=generator, dtype=torch.float64)
    valid = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    return x, y, valid, valid.sum()


def test_an_invalid_row_counts_for_nothing_even_when_it_is_not_finite() -> None:
    x, y, valid, count = data()
    spoiled = torch.where(valid, x, float("inf")).detach().requires_grad_()
    for loss in LOSSES:
        clean = loss(x, y, valid=valid, count=count)
        dirty = loss(spoiled, y, valid=valid, count=count)
        torch.testing.assert_close(dirty, clean)
    bonus = entropy_bonus(spoiled, valid=valid, count=count)
    torch.testing.assert_close(bonus, x[valid].mean())
    (gradient,) = torch.autograd.grad(bonus, spoiled)
    torch.testing.assert_close(gradient, valid / count.double())


def test_the_mean_is_over_the_count_given() -> None:
    """With several learners the count is the global one."""
    x, _, valid, count = data()
    torch.testing.assert_close(masked_mean(x, valid=valid, count=2 * count), x[valid].mean() / 2)


def test_the_policy_gradient_is_the_advantage_times_the_gradient_of_the_log_probability() -> None:
    x, y, valid, count = data()
    advantages = y.clone().requires_grad_()
    loss = policy_gradient_loss(log_prob=x, advantages=advantages, valid=valid, count=count)
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    torch.testing.assert_close(gradient, torch.where(valid, -y / count, 0.0))
    assert torch.autograd.grad(loss, advantages, allow_unused=True) == (None,)


def test_loss_gradients_agree_with_finite_differences() -> None:
    x, y, valid, count = data()
    for loss in LOSSES:
        torch.autograd.gradcheck(lambda x, loss=loss: loss(x, y, valid=valid, count=count), (x,))
