"""n-step returns over streams: they end with an episode, and at the end of the rows they become shorter.

`n_step_returns` is the law. The replay, which knows no torch, sums in numpy what it gathers
(`replay.views.Transition`); a test holds it to this law.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes


class NStep(NamedTuple):
    returns: Tensor  # [T, B], discounted sum of the rewards until the row to bootstrap from
    discounts: Tensor  # [T, B], factor of that row's value: 0 after a termination
    steps: Tensor  # int64 [T, B], how many rows further it lies; up to row T


@torch.no_grad()
def n_step_returns(*, rewards: Tensor, discounts: Tensor, valid: Tensor, n: int) -> NStep:
    """Returns over up to n rows (Sutton 1988; Horgan 2018). All [T, B], discounts γ·(1 − terminated), valid bool.

    A return ends at the first row that is no transition: it holds the episode's final observation, from which a
    truncated episode is bootstrapped. Row t of such a kind itself has return 0, discount 1 and 0 steps. The last
    n − 1 rows have shorter returns, bootstrapped from row T. Of items with n rows each, row 0 is what is wanted.
    """
    check_shapes(rewards.shape, discounts=discounts, valid=valid)
    length = len(rewards)
    returns = torch.zeros_like(rewards)
    product = torch.ones_like(discounts)
    steps = torch.zeros_like(rewards, dtype=torch.int64)
    going = torch.ones_like(valid)
    for k in range(min(n, length)):
        rows = slice(0, length - k)  # those for which row t + k exists
        going[rows] &= valid[k:]
        returns[rows] += torch.where(going[rows], product[rows] * rewards[k:], 0.0)
        product[rows] = torch.where(going[rows], product[rows] * discounts[k:], product[rows])
        steps[rows] += going[rows]
    return NStep(returns, product, steps)


@torch.no_grad()
def bootstrap(*, returns: Tensor, discounts: Tensor, values: Tensor) -> Tensor:
    """returns + discounts · values. The first two [...], values [...] or with an axis of quantiles [..., K].

    Where the discount is 0 the value does not count, whatever it is. Carries no gradient.
    """
    check_shapes(values.shape[: returns.dim()], returns=returns, discounts=discounts)
    if values.dim() > returns.dim():
        returns, discounts = returns.unsqueeze(-1), discounts.unsqueeze(-1)
    return returns + torch.where(discounts == 0, 0.0, discounts * values)


@torch.no_grad()
def n_step_targets(*, values: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, n: int) -> Tensor:
    """Bootstrapped n-step returns of every row [T, B]. values [T+1, B], the rest [T, B]; carries no gradient.

    The target of a row that is no transition is its own value.
    """
    step = n_step_returns(rewards=rewards, discounts=discounts, valid=valid, n=n)
    rows = torch.arange(len(rewards), device=rewards.device).unsqueeze(-1) + step.steps
    return bootstrap(returns=step.returns, discounts=step.discounts, values=values.gather(0, rows))
