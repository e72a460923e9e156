"""V-trace against the paper's definition and its special cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.functional.gae import gae
from shoal.functional.returns import backward_recurrence, explained_variance
from shoal.functional.vtrace import vtrace

T, B = 7, 5


def inputs(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ended = torch.rand(T, B, generator=generator) < 0.2
    return {
        "values": torch.randn(T + 1, B, generator=generator, dtype=dtype),
        "rewards": torch.randn(T, B, generator=generator, dtype=dtype),
        "discounts": torch.where(ended, 0.0, 0.9).to(dtype),
        "rho": torch.rand(T, B, generator=generator, dtype=dtype) * 3.0,
    }


@pytest.mark.parametrize(("lambda_", "clip_rho", "clip_c"), [(1.0, 1.0, 1.0), (0.8, 2.0, 1.0), (0.5, 1.5, 0.7)])
def test_vtrace_is_the_papers_double_sum(lambda_: float, clip_rho: float, clip_c: float) -> None:
    x = inputs()
    values, rewards, discounts, rho = (x[name].numpy() for name in ("values", "rewards", "discounts", "rho"))
    expected = np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            expected[s, b] = values[s, b]
            for t in range(s, T):
                product = 1.0  # of γ c from s to t − 1
                for i in range(s, t):
                    product *= discounts[i, b] * lambda_ * min(clip_c, rho[i, b])
                error = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                expected[s, b] += product * min(clip_rho, rho[t, b]) * error
    found = vtrace(**x, lambda_=lambda_, clip_rho=clip_rho, clip_c=clip_c, clip_pg_rho=0.9)
    np.testing.assert_allclose(found.targets.numpy(), expected, rtol=1e-12)
    following = np.concatenate([lambda_ * expected[1:] + (1.0 - lambda_) * values[1:-1], values[-1:]])
    advantages = np.minimum(0.9, rho) * (rewards + discounts * following - values[:-1])
    np.testing.assert_allclose(found.advantages.numpy(), advantages, rtol=1e-12, atol=1e-12)


def test_on_policy_vtrace_is_the_n_step_return() -> None:
    x = inputs(1) | {"rho": torch.ones(T, B, dtype=torch.float64)}
    expected = [x["values"][-1]]
    for t in reversed(range(T)):
        expected.insert(0, x["rewards"][t] + x["discounts"][t] * expected[0])
    found = vtrace(**x)
    torch.testing.assert_close(found.targets, torch.stack(expected[:-1]))
    torch.testing.assert_close(found.advantages, torch.stack(expected[:-1]) - x["values"][:-1])


@pytest.mark.parametrize("lambda_", [1.0, 0.95, 0.5, 0.0])
def test_on_policy_vtrace_is_generalised_advantage_estimation(lambda_: float) -> None:
    """Also with λ < 1, and across the ends of episodes: rows that are no transitions have rho = 0."""
    x = inputs(1)
    valid = torch.rand(T, B, generator=torch.Generator().manual_seed(2)) < 0.8
    found = vtrace(**(x | {"rho": valid.double()}), lambda_=lambda_)
    expected = gae(values=x["values"], rewards=x["rewards"], discounts=x["discounts"], valid=valid, lambda_=lambda_)
    torch.testing.assert_close(found.advantages, expected.advantages)
    torch.testing.assert_close(found.targets, expected.targets)


def test_an_invalid_step_splits_the_trajectory() -> None:
    """What comes after the row with rho = 0 changes nothing before it, and before it counts as a bootstrap."""
    x = inputs(2)
    x["discounts"] = torch.full_like(x["discounts"], 0.9)
    cut = 3
    x["rho"][cut] = 0.0
    whole = vtrace(**x)
    torch.testing.assert_close(whole.targets[cut], x["values"][cut])
    assert torch.all(whole.advantages[cut] == 0.0)
    before = vtrace(
        values=x["values"][: cut + 1], rewards=x["rewards"][:cut], discounts=x["discounts"][:cut], rho=x["rho"][:cut]
    )
    after = vtrace(**{name: tensor[cut + 1 :] for name, tensor in x.items()})
    torch.testing.assert_close(whole.targets[:cut], before.targets)
    torch.testing.assert_close(whole.advantages[:cut], before.advantages)
    torch.testing.assert_close(whole.targets[cut + 1 :], after.targets)


def test_a_terminated_step_does_not_bootstrap() -> None:
    x = inputs(3)
    x["discounts"][4] = 0.0
    changed = x | {"values": x["values"].clone()}
    changed["values"][5:] += 100.0
    torch.testing.assert_close(vtrace(**changed).targets[:5], vtrace(**x).targets[:5])


def test_no_gradient_flows_through_vtrace() -> None:
    x = {name: tensor.requires_grad_() for name, tensor in inputs(4).items()}
    found = vtrace(**x)
    assert not found.targets.requires_grad
    assert not found.advantages.requires_grad


def test_vtrace_leaves_its_inputs_alone() -> None:
    x = inputs(5)
    before = {name: tensor.clone() for name, tensor in x.items()}
    vtrace(**x)
    for name, tensor in x.items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 21])
def test_the_recurrence_by_doubling_equals_the_loop(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(length, B, generator=generator, dtype=torch.float64)
    decay = torch.rand(length, B, generator=generator, dtype=torch.float64)
    loop = backward_recurrence(inputs=x, decay=decay)
    doubled = backward_recurrence(inputs=x, decay=decay, by_doubling=True)
    torch.testing.assert_close(loop, doubled)
    torch.testing.assert_close(loop[-1], x[-1])
    if length > 1:
        torch.testing.assert_close(loop[0], x[0] + decay[0] * loop[1])


def test_explained_variance_is_one_for_perfect_values_and_zero_for_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(T, B, generator=generator)
    valid = torch.rand(T, B, generator=generator) < 0.7
    count = valid.sum()
    targets[~valid] = float("nan")
    mean_error = targets[valid].var(correction=0)
    assert float(explained_variance(squared_error=torch.tensor(0.0), targets=targets, valid=valid, count=count)) == 1.0
    assert float(
        explained_variance(squared_error=mean_error, targets=targets, valid=valid, count=count)
    ) == pytest.approx(0.0, abs=1e-5)
    constant = torch.full_like(targets, 2.0)  # there is nothing to explain, and values that are right explain it
    assert float(explained_variance(squared_error=torch.tensor(0.0), targets=constant, valid=valid, count=count)) == 1.0
