"""Q-learning: double-Q values, Huber, and R2D2's targets, losses and priorities."""

from __future__ import annotations

import math

import pytest
import torch
from law_streams import stream

from shoal.functional.n_step import bootstrap
from shoal.functional.q import (
    SMALLEST_PRIORITY,
    as_priorities,
    chosen,
    double_q_values,
    huber,
    r2d2_targets,
    sequence_losses,
    sequence_priorities,
)
from shoal.functional.rescaling import inverse_rescale, rescale

T, B, A, K = 12, 4, 3, 5


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_double_q_target_values_the_online_choice_with_the_target_network() -> None:
    online, target = random(B, A), random(B, A, seed=1)
    returns, discounts = random(B, seed=2), torch.tensor([0.9, 0.9, 0.0, 0.5], dtype=torch.float64)
    found = bootstrap(returns=returns, discounts=discounts, values=double_q_values(online=online, target=target))
    for b in range(B):
        best = max(range(A), key=lambda action: float(online[b, action]))
        assert float(found[b]) == pytest.approx(float(returns[b] + discounts[b] * target[b, best]))


def test_double_q_values_of_quantiles_are_the_chosen_actions_quantiles() -> None:
    online, target = random(T, B, A, K), random(T, B, A, K, seed=1)
    found = double_q_values(online=online.mean(-1), target=target)
    for t in range(T):
        for b in range(B):
            assert torch.equal(found[t, b], target[t, b, int(online[t, b].mean(-1).argmax())])


def test_double_q_values_carry_no_gradient() -> None:
    assert not double_q_values(online=random(B, A).requires_grad_(), target=random(B, A).requires_grad_()).requires_grad


def test_chosen_picks_each_rows_action() -> None:
    q, actions = random(T, B, A), torch.randint(A, (T, B), dtype=torch.int32)
    found = chosen(q, actions=actions)
    assert all(found[t, b] == q[t, b, actions[t, b]] for t in range(T) for b in range(B))


def test_the_gradient_of_the_td_loss_goes_to_the_taken_actions_only() -> None:
    q = random(B, A).requires_grad_()
    targets = random(B, seed=1).requires_grad_()
    actions = torch.tensor([0, 2, 1, 1])
    assert torch.autograd.gradcheck(lambda q: huber(targets.detach() - chosen(q, actions=actions)), (q,))
    losses = 0.5 * (targets.detach() - chosen(q, actions=actions)).square()
    (for_q,) = torch.autograd.grad(losses.sum(), q)
    expected = torch.zeros(B, A, dtype=torch.float64)
    expected[torch.arange(B), actions] = q.detach()[torch.arange(B), actions] - targets.detach()
    torch.testing.assert_close(for_q, expected)


@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_huber_is_square_within_kappa_and_linear_beyond(kappa: float) -> None:
    x = torch.linspace(-3.0, 3.0, 41, dtype=torch.float64).requires_grad_()
    expected = [0.5 * v * v if abs(v) <= kappa else kappa * (abs(v) - 0.5 * kappa) for v in x.tolist()]
    torch.testing.assert_close(huber(x, kappa=kappa).tolist(), expected)
    inside = torch.tensor([-1.7, -0.2, 0.25, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: huber(x, kappa=kappa), (inside,))


def test_r2d2_targets_add_rewards_in_plain_space_and_answer_in_rescaled_space() -> None:
    x = stream(T, B, seed=4, gamma=0.997)
    x["values"] *= 5.0
    n = 5
    found = r2d2_targets(**x, n=n)
    for b in range(B):
        for t in range(T):
            row, total, factor = t, 0.0, 1.0
            while row < T and row < t + n and x["valid"][row, b] and factor != 0.0:
                total += factor * float(x["rewards"][row, b])
                factor *= float(x["discounts"][row, b])
                row += 1
            plain = torch.as_tensor(total) + factor * inverse_rescale(x["values"][row, b])
            assert float(found[t, b]) == pytest.approx(float(rescale(plain)), abs=1e-6)
    assert not r2d2_targets(**x | {"values": x["values"].requires_grad_()}, n=n).requires_grad


def test_r2d2_priorities_mix_the_largest_and_the_mean_error_of_valid_rows() -> None:
    errors, valid = random(T, B), stream(T, B, seed=5)["valid"]
    valid[:, 3] = False
    errors = torch.where(valid, errors, math.nan)
    found = sequence_priorities(errors, valid=valid)
    for b in range(B - 1):
        sizes = [abs(float(errors[t, b])) for t in range(T) if valid[t, b]]
        assert float(found[b]) == pytest.approx(0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes))
    assert found[3] == 0.0


def test_sequence_losses_are_half_the_sum_of_squares_and_skip_invalid_rows() -> None:
    errors, valid = random(T, B), stream(T, B, seed=6)["valid"]
    expected = [0.5 * sum(float(errors[t, b]) ** 2 for t in range(T) if valid[t, b]) for b in range(B)]
    torch.testing.assert_close(sequence_losses(errors, valid=valid).tolist(), expected)
    errors.requires_grad_()
    assert torch.autograd.gradcheck(lambda errors: sequence_losses(errors, valid=valid), (errors,))
    spoiled = torch.where(valid, errors.detach(), math.inf).requires_grad_()
    (gradient,) = torch.autograd.grad(sequence_losses(spoiled, valid=valid).sum(), spoiled)
    torch.testing.assert_close(gradient, torch.where(valid, errors.detach(), 0.0))


def test_no_error_is_so_small_that_its_item_is_never_drawn_again() -> None:
    errors = torch.tensor([0.0, -0.0, 1e-9, -0.5, 2.0], requires_grad=True)
    priorities = as_priorities(errors)
    assert not priorities.requires_grad
    torch.testing.assert_close(priorities, torch.tensor([SMALLEST_PRIORITY] * 3 + [0.5, 2.0]), rtol=0, atol=0)
    assert (priorities > 0.0).all()
    assert torch.isnan(as_priorities(torch.tensor([float("nan")]))).all(), "refused where it arrives, not hidden"
