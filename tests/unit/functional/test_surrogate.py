"""Clipped surrogates, clipped values, approximate divergence and entropy: direct sums and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shoal.functional.distributions import Categorical, DiagonalGaussian, MultiCategorical
from shoal.functional.policy_gradient import entropy_bonus
from shoal.functional.surrogate import (
    approximate_kl,
    asynchronous_surrogate_loss,
    clipped_fraction,
    clipped_surrogate_loss,
    clipped_value_loss,
)

T, B = 5, 4
CLIP = 0.2
GENERATOR = torch.Generator()
VALID = torch.rand(T, B, generator=GENERATOR.manual_seed(0)) < 0.7
COUNT = VALID.sum()


def random(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(T, B, generator=GENERATOR.manual_seed(seed), dtype=torch.float64)


def mean_over_valid(row: Callable[[int, int], float]) -> float:
    return sum(row(t, b) for t in range(T) for b in range(B) if VALID[t, b]) / int(COUNT)


def clipped(ratio: float, advantage: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1.0 - CLIP), 1.0 + CLIP) * advantage)


def test_the_surrogate_is_the_mean_of_the_smaller_of_two_products() -> None:
    now, before, advantages = random(1, 0.3), random(2, 0.3), random(3)
    expected = -mean_over_valid(lambda t, b: clipped(math.exp(now[t, b] - before[t, b]), float(advantages[t, b])))
    assert float(
        clipped_surrogate_loss(
            log_prob=now, behaviour_log_prob=before, advantages=advantages, valid=VALID, count=COUNT, clip=CLIP
        )
    ) == pytest.approx(expected)


def test_the_asynchronous_surrogate_uses_the_limited_ratio_to_the_target_policy() -> None:
    now, target, before, advantages = random(1, 0.6), random(4, 0.6), random(2, 0.6), random(3)

    def row(t: int, b: int) -> float:
        correction = min(2.0, math.exp(before[t, b] - target[t, b]))
        return clipped(correction * math.exp(now[t, b] - before[t, b]), float(advantages[t, b]))

    found = asynchronous_surrogate_loss(
        log_prob=now,
        target_log_prob=target,
        behaviour_log_prob=before,
        advantages=advantages,
        valid=VALID,
        count=COUNT,
        clip=CLIP,
    )
    assert float(found) == pytest.approx(-mean_over_valid(row))
    assert bool(((before - target).exp() > 2.0)[VALID].any())  # the limit has been at work


def test_the_asynchronous_surrogate_is_the_synchronous_one_when_the_target_policy_acted() -> None:
    now, before, advantages = random(1, 0.3), random(2, 0.3), random(3)
    torch.testing.assert_close(
        asynchronous_surrogate_loss(
            log_prob=now,
            target_log_prob=before,
            behaviour_log_prob=before,
            advantages=advantages,
            valid=VALID,
            count=COUNT,
            clip=CLIP,
        ),
        clipped_surrogate_loss(
            log_prob=now, behaviour_log_prob=before, advantages=advantages, valid=VALID, count=COUNT, clip=CLIP
        ),
    )


def test_the_gradients_of_the_surrogates_are_those_of_finite_differences() -> None:
    now, target, before, advantages = (
        x.requires_grad_() for x in (random(1, 0.3), random(4), random(2, 0.3), random(3))
    )
    others = (target, before, advantages)

    def synchronous(x: Tensor) -> Tensor:
        return clipped_surrogate_loss(
            log_prob=x, behaviour_log_prob=before, advantages=advantages, valid=VALID, count=COUNT, clip=CLIP
        )

    def asynchronous(x: Tensor) -> Tensor:
        return asynchronous_surrogate_loss(
            log_prob=x,
            target_log_prob=target,
            behaviour_log_prob=before,
            advantages=advantages,
            valid=VALID,
            count=COUNT,
            clip=CLIP,
        )

    for loss in (synchronous, asynchronous):
        assert torch.autograd.gradcheck(loss, (now,))
        assert torch.autograd.grad(loss(now), others, allow_unused=True) == (None, None, None)


def test_a_ratio_beyond_the_clip_has_no_gradient_in_the_direction_of_the_advantage() -> None:
    now = torch.tensor([0.5, 0.5, -0.5, -0.5], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    valid = torch.ones(4, dtype=torch.bool)
    loss = clipped_surrogate_loss(
        log_prob=now,
        behaviour_log_prob=torch.zeros(4),
        advantages=advantages,
        valid=valid,
        count=torch.tensor(1),
        clip=CLIP,
    )
    (gradient,) = torch.autograd.grad(loss, now)
    expected = [0.0, math.exp(0.5), -math.exp(-0.5), 0.0]
    torch.testing.assert_close(gradient.tolist(), expected)


def test_the_clipped_value_loss_takes_the_larger_square_and_its_gradient_is_that_of_finite_differences() -> None:
    values, old, targets = random(1), random(2), random(3)

    def row(t: int, b: int) -> float:
        v, o, r = float(values[t, b]), float(old[t, b]), float(targets[t, b])
        return 0.5 * max((v - r) ** 2, (o + min(max(v - o, -CLIP), CLIP) - r) ** 2)

    found = clipped_value_loss(values=values, old_values=old, targets=targets, valid=VALID, count=COUNT, clip=CLIP)
    assert float(found) == pytest.approx(mean_over_valid(row))
    values.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: clipped_value_loss(values=x, old_values=old, targets=targets, valid=VALID, count=COUNT, clip=CLIP),
        (values,),
    )


def test_whatever_stands_on_invalid_rows_spoils_neither_losses_nor_gradients() -> None:
    now, before, advantages = random(1, 0.3), random(2, 0.3), random(3)

    def results(spoil: float) -> list[Tensor]:
        rows = [torch.where(VALID, x, spoil) for x in (now, before, advantages)]
        x = torch.where(VALID, now, -spoil).requires_grad_()
        losses = [
            clipped_surrogate_loss(
                log_prob=x, behaviour_log_prob=rows[1], advantages=rows[2], valid=VALID, count=COUNT, clip=CLIP
            ),
            asynchronous_surrogate_loss(
                log_prob=x,
                target_log_prob=rows[1],
                behaviour_log_prob=rows[1],
                advantages=rows[2],
                valid=VALID,
                count=COUNT,
                clip=CLIP,
            ),
            clipped_value_loss(values=x, old_values=rows[1], targets=rows[2], valid=VALID, count=COUNT, clip=CLIP),
        ]
        gradients = [torch.autograd.grad(loss, x)[0] for loss in losses]
        kl = approximate_kl(log_prob=x, behaviour_log_prob=rows[1], valid=VALID, count=COUNT)
        return [
            *losses,
            *gradients,
            kl,
            clipped_fraction(log_prob=x, behaviour_log_prob=rows[1], valid=VALID, count=COUNT, clip=CLIP),
        ]

    for spoil in (math.inf, -math.inf, math.nan):
        torch.testing.assert_close(results(spoil), results(0.0))


def test_the_approximate_kl_estimates_the_divergence_from_the_behaviour() -> None:
    logits = torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]], dtype=torch.float64)
    behaviour, policy = torch.log_softmax(logits, -1)
    exact = (behaviour.exp() * (behaviour - policy)).sum()
    # every action as often as the behaviour takes it
    actions = torch.repeat_interleave(torch.arange(3), (behaviour.exp() * 100_000).round().long())
    everything = torch.ones(len(actions), dtype=torch.bool)
    found = approximate_kl(
        log_prob=policy[actions], behaviour_log_prob=behaviour[actions], valid=everything, count=everything.sum()
    )
    assert float(found) == pytest.approx(float(exact), rel=1e-3)


def test_the_clipped_fraction_counts_valid_rows_outside_the_clip() -> None:
    now, before = random(1, 0.3), random(2, 0.3)
    expected = mean_over_valid(lambda t, b: float(abs(math.exp(now[t, b] - before[t, b]) - 1.0) > CLIP))
    assert float(
        clipped_fraction(log_prob=now, behaviour_log_prob=before, valid=VALID, count=COUNT, clip=CLIP)
    ) == pytest.approx(expected)


def test_the_entropy_bonus_is_the_mean_of_minus_p_log_p_and_its_gradient_that_of_finite_differences() -> None:
    logits = torch.randn(T, B, 3, generator=GENERATOR.manual_seed(7), dtype=torch.float64)
    p = torch.softmax(logits, -1)
    expected = mean_over_valid(lambda t, b: -sum(float(q) * math.log(q) for q in p[t, b]))
    assert float(entropy_bonus(Categorical(3).entropy(logits), valid=VALID, count=COUNT)) == pytest.approx(expected)
    cases = [(Categorical(3), 3), (MultiCategorical((2, 3), (2,)), 5), (DiagonalGaussian((0.0,), (2.0,), (1,)), 2)]
    for distribution, size in cases:
        parameters = torch.randn(T, B, size, generator=GENERATOR.manual_seed(8), dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, d=distribution: entropy_bonus(d.entropy(x), valid=VALID, count=COUNT), (parameters,)
        )
