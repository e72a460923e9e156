"""Generalised advantages against the paper's sum."""

from __future__ import annotations

import pytest
import torch
from law_streams import stream

from shoal.functional.gae import gae
from shoal.functional.n_step import n_step_targets

T, B = 17, 6


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 0.95, 1.0])
def test_gae_is_the_discounted_sum_of_td_errors_within_an_episode(lambda_: float) -> None:
    x = stream(T, B, seed=1)
    found = gae(**x, lambda_=lambda_)
    values, rewards, discounts, valid = (x[key] for key in ("values", "rewards", "discounts", "valid"))
    for b in range(B):
        for t in range(T):
            expected, factor = 0.0, 1.0
            for row in range(t, T):
                if not valid[row, b]:
                    break
                error = rewards[row, b] + discounts[row, b] * values[row + 1, b] - values[row, b]
                expected += factor * float(error)
                factor *= float(discounts[row, b]) * lambda_
            assert float(found.advantages[t, b]) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found.targets, found.advantages + values[:-1])


def test_gae_with_lambda_one_aims_at_the_longest_n_step_return() -> None:
    x = stream(T, B, seed=2)
    torch.testing.assert_close(gae(**x, lambda_=1.0).targets, n_step_targets(**x, n=T))


def test_an_invalid_row_has_advantage_zero_and_nothing_crosses_it() -> None:
    x = stream(T, B, seed=3)
    x["valid"][8] = False
    found = gae(**x)
    assert torch.all(found.advantages[8] == 0.0)
    changed = {key: tensor.clone() for key, tensor in x.items()}
    changed["values"][9:] += 100.0
    changed["rewards"][8:] = 100.0
    torch.testing.assert_close(gae(**changed).advantages[:9], found.advantages[:9])


def test_a_truncated_row_is_bootstrapped_from_the_final_observation() -> None:
    x = stream(T, B, seed=3)
    x["valid"][7], x["valid"][8], x["discounts"][7] = True, False, 0.9
    expected = x["rewards"][7] + 0.9 * x["values"][8] - x["values"][7]
    torch.testing.assert_close(gae(**x).advantages[7], expected)


def test_a_terminated_row_ignores_even_an_infinite_value() -> None:
    x = stream(T, B, seed=4)
    x["discounts"][7], x["valid"][7], x["valid"][8], x["values"][8] = 0.0, True, False, float("inf")
    torch.testing.assert_close(gae(**x).advantages[7], x["rewards"][7] - x["values"][7])
    assert torch.isfinite(gae(**x).advantages).all()


def test_no_gradient_flows_through_gae() -> None:
    x = stream(T, B, seed=5)
    x["values"].requires_grad_()
    found = gae(**x)
    assert not found.advantages.requires_grad
    assert not found.targets.requires_grad
