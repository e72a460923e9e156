"""Distributions of returns: quantile regression, and categorical distributions on a fixed support."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.functional.shapes import check_shapes

_PAIRS = 2**17  # quantile pairs at a time: temporaries stay in the cache, several times faster with 200 quantiles


def quantile_midpoints(count: int, *, like: Tensor) -> Tensor:
    """τ_i = (2i + 1) / 2N for i = 0..N−1 (Dabney 2018), [N], of the dtype and device of `like`."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


def quantile_huber_loss(*, predicted: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Σ_i mean_j |τ_i − [u_ij < 0]| Huber(u_ij) / κ with u_ij = target_j − predicted_i (Dabney 2018, eq. 10), [B].

    predicted [B, N], targets [B, M]; no gradient through the targets.
    """
    check_shapes(predicted.shape[:1], targets=targets[:, 0])
    pieces = [_quantile_sums(now, ahead, kappa) for now, ahead in _pieces(predicted, targets)]
    loss, slope = (torch.cat(parts) for parts in zip(*pieces))
    # The slope is at hand: a line through the loss with that slope has the right value and the right gradient, and
    # autograd need not keep the N × M pairs.
    line = loss - (slope * (predicted - predicted.detach())).sum(-1)
    return line / (kappa * targets.shape[-1])


@torch.no_grad()
def _quantile_sums(predicted: Tensor, targets: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Sums over pairs: κ·loss [B], and minus its derivative by each prediction [B, N]."""
    midpoints = quantile_midpoints(predicted.shape[-1], like=predicted)
    errors = targets.unsqueeze(-2) - predicted.unsqueeze(-1)
    clipped, rest = torch.empty_like(errors), torch.empty_like(errors)  # reused: fresh memory costs more than the sums
    loss, slope = torch.zeros_like(predicted), torch.zeros_like(predicted)
    for weight, low, high in ((midpoints, 0.0, kappa), (1.0 - midpoints, -kappa, 0.0)):  # too low, then too high
        torch.clamp(errors, low, high, out=clipped)
        slope += weight * clipped.sum(-1)
        torch.sub(errors, clipped, alpha=0.5, out=rest)
        loss += weight * clipped.mul_(rest).sum(-1)
    return loss.sum(-1), slope


@torch.no_grad()
def quantile_priorities(*, predicted: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error over all pairs of predicted [B, N] and target [B, M] quantiles, [B]."""
    check_shapes(predicted.shape[:1], targets=targets[:, 0])
    pairs = _pieces(predicted, targets)
    return torch.cat([(ahead.unsqueeze(-2) - now.unsqueeze(-1)).abs_().mean((-1, -2)) for now, ahead in pairs])


def _pieces(predicted: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both, so many items at a time."""
    items = max(1, _PAIRS // (predicted.shape[-1] * targets.shape[-1]))
    return zip(torch.split(predicted, items), torch.split(targets, items))


def categorical_mean(logits: Tensor, *, support: Tensor) -> Tensor:
    """The expected return. logits [..., K] over the atoms of support [K] → [...]."""
    return (torch.softmax(logits, dim=-1) * support).sum(-1)


@torch.no_grad()
def project(*, probabilities: Tensor, returns: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """The distribution of returns + discounts · Z on the support of Z (Bellemare 2017, eq. 7).

    probabilities [B, K] of evenly spaced atoms [K], returns and discounts [B] (0 after a termination) → [B, K].
    Each moved atom is shared between its two neighbours; what leaves the support is put on its end. No gradient. A
    return that is NaN gives a distribution of NaN.
    """
    check_shapes(probabilities.shape[:1], returns=returns, discounts=discounts)
    low, high, atoms = support[0], support[-1], len(support)
    moved = torch.clamp(returns.unsqueeze(-1) + discounts.unsqueeze(-1) * support, low, high)
    place = (moved - low) * ((atoms - 1) / (high - low))
    lower = place.floor().clamp(0, atoms - 2)
    share = place - lower
    index = lower.nan_to_num().long()  # a return that is not a number stays one: its share is
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(-1, index, probabilities * (1.0 - share))
    return projected.scatter_add_(-1, index + 1, probabilities * share)


@torch.no_grad()
def mass_outside(*, probabilities: Tensor, returns: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """The part of each target distribution that `project` had to move onto an end of the support, [B]: 0 is well.

    Arguments as for `project`. A thousandth of a gap outside is rounding and does not count.
    """
    moved = returns.unsqueeze(-1) + discounts.unsqueeze(-1) * support
    margin = 1e-3 * (support[1] - support[0])
    outside = (moved < support[0] - margin) | (moved > support[-1] + margin)
    return torch.where(outside, probabilities, 0.0).sum(-1)


def categorical_loss(*, logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy −Σ p log q. logits and target probabilities [B, K] → [B]; no gradient through the targets."""
    check_shapes(logits.shape, targets=targets)
    return -(targets.detach() * torch.log_softmax(logits, dim=-1)).sum(-1)
