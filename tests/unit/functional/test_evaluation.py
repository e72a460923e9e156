"""Importance sampling and ranks: what they are where the answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.functional.evaluation import rank_correlation, weighted_importance_sampling


def once(count: int) -> torch.Tensor:
    return torch.ones(1, count, dtype=torch.float64)


def test_who_acted_itself_earns_the_mean_discounted_return() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 99.0]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True], [True, True, False]])
    found = weighted_importance_sampling(
        rewards=rewards, log_ratios=torch.zeros_like(rewards), valid=valid, counts=once(2), gamma=0.5
    )
    assert float(found.value) == pytest.approx(((1.0 + 1.0 + 1.0) + (3.0 + 2.5)) / 2.0)
    assert float(found.effective) == pytest.approx(2.0)


def test_a_bandit_is_worth_what_the_other_policy_would_have_drawn() -> None:
    """Two arms that give 1 and 0: drawn evenly, and wanted with 0.9 and 0.1."""
    arms = torch.arange(10_000) % 2
    rewards = (1.0 - arms).double().unsqueeze(1)
    log_ratios = torch.where(arms == 0, math.log(0.9 / 0.5), math.log(0.1 / 0.5)).double().unsqueeze(1)
    found = weighted_importance_sampling(
        rewards=rewards, log_ratios=log_ratios, valid=torch.ones_like(rewards).bool(), counts=once(10_000), gamma=1.0
    )
    assert float(found.value) == pytest.approx(0.9)
    assert float(found.effective) == pytest.approx(10_000 / (2 * (0.9**2 + 0.1**2)))


def test_one_episode_that_the_policy_would_have_made_is_all_that_counts() -> None:
    rewards = torch.tensor([[1.0, 1.0], [7.0, 7.0]], dtype=torch.float64)
    log_ratios = torch.tensor([[-800.0, 0.0], [700.0, 700.0]], dtype=torch.float64)  # far beyond what exp holds
    found = weighted_importance_sampling(
        rewards=rewards, log_ratios=log_ratios, valid=torch.ones(2, 2).bool(), counts=once(2), gamma=1.0
    )
    assert float(found.value) == pytest.approx(14.0)
    assert float(found.effective) == pytest.approx(1.0)


def test_counts_draw_episodes() -> None:
    rewards = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    counts = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    found = weighted_importance_sampling(
        rewards=rewards, log_ratios=rewards * 0.0, valid=rewards > 0, counts=counts, gamma=1.0
    )
    assert found.value.tolist() == [1.0, 3.0, 2.0]


def test_ranks_see_order_alone() -> None:
    one = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert float(rank_correlation(one, other=one.exp())) == pytest.approx(1.0)
    assert float(rank_correlation(one, other=-(one**3))) == pytest.approx(-1.0)
    assert float(rank_correlation(one, other=torch.tensor([1.0, 2.0, 4.0, 3.0]))) == pytest.approx(0.8)
    assert float(rank_correlation(one, other=torch.tensor([1.0, 2.0, 2.0, 3.0]))) == pytest.approx(0.9486833)
    assert math.isnan(float(rank_correlation(one, other=torch.ones(4))))
