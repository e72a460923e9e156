"""Q-learning: chosen values, double-Q bootstrap values, losses of TD errors, and R2D2's targets and priorities."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.functional.n_step import n_step_targets
from shoal.functional.rescaling import EPSILON, inverse_rescale, rescale
from shoal.functional.shapes import check_shapes

SMALLEST_PRIORITY = 1e-6


def chosen(q: Tensor, *, actions: Tensor) -> Tensor:
    """The values of actions [...] taken (from 0): q [..., A] → [...], or quantiles [..., A, K] → [..., K]."""
    axis = actions.dim()
    index = actions.long().unsqueeze(-1)
    if q.dim() == axis + 1:
        return q.gather(axis, index).squeeze(axis)
    return q.gather(axis, index.unsqueeze(-1).expand(*index.shape, q.shape[-1])).squeeze(axis)


@torch.no_grad()
def double_q_values(*, online: Tensor, target: Tensor) -> Tensor:
    """What the target network gives to the action that the online network prefers (van Hasselt 2016).

    online [..., A] (of quantiles the mean), target [..., A] → [...], or quantiles [..., A, K] → [..., K]. No gradient.
    """
    return chosen(target, actions=online.argmax(-1))


def huber(errors: Tensor, *, kappa: float = 1.0) -> Tensor:
    """x²/2 up to κ, beyond it κ(|x| − κ/2) (Huber 1964), element by element."""
    clipped = errors.clamp(-kappa, kappa)
    return clipped * (errors - 0.5 * clipped)


def r2d2_targets(
    *, values: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, n: int, epsilon: float = EPSILON
) -> Tensor:
    """h(n-step return of h⁻¹(values)) (Kapturowski 2019). values [T+1, B], the rest [T, B] → [T, B].

    Values are as the networks give them, rescaled, and so are the targets. No gradient flows through.
    """
    plain = inverse_rescale(values.detach(), epsilon=epsilon)
    returns = n_step_targets(values=plain, rewards=rewards, discounts=discounts, valid=valid, n=n)
    return rescale(returns, epsilon=epsilon)


def sequence_losses(errors: Tensor, *, valid: Tensor) -> Tensor:
    """½ Σ δ² over the valid rows of each sequence. Both [T, B] → [B]."""
    check_shapes(errors.shape, valid=valid)
    return 0.5 * torch.where(valid, errors, 0.0).square().sum(0)


@torch.no_grad()
def sequence_priorities(errors: Tensor, *, valid: Tensor, mix: float = 0.9) -> Tensor:
    """mix · max |δ| + (1 − mix) · mean |δ| over the valid rows of each sequence (Kapturowski 2019). Both [T, B] → [B].

    A sequence without a valid row has priority 0.
    """
    check_shapes(errors.shape, valid=valid)
    size = torch.where(valid, errors.abs(), 0.0)
    return mix * size.amax(0) + (1.0 - mix) * size.sum(0) / valid.sum(0).clamp(min=1)


def as_priorities(errors: Tensor) -> Tensor:
    """|errors| of items [B] as their priorities, at least `SMALLEST_PRIORITY`; without gradient.

    An item of priority 0 has probability 0: once an error is exactly 0, as of rewards that never differ, it would
    never be drawn again, whatever the network forgets or its targets become (Schaul 2016 adds a constant for this). NaN
    stays NaN: it is refused where it arrives.
    """
    return errors.detach().abs().clamp(min=SMALLEST_PRIORITY)


def importance_mean(losses: Tensor, *, importance: Tensor | None) -> Tensor:
    """The mean of items' losses [B], each weighted by its importance [B] where it was sampled by priority; 0-d."""
    if importance is None:
        return losses.mean()
    check_shapes(losses.shape, importance=importance)
    return (importance * losses).mean()


@torch.no_grad()
def value_metrics(*, q: Tensor, errors: Tensor) -> dict[str, Tensor]:
    """What users of Q-learning look for: the size of TD errors, and the range of values."""
    return {"td_error": errors.abs().mean(), "q_mean": q.mean(), "q_min": q.min(), "q_max": q.max()}
