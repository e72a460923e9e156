"""Action distributions against torch.distributions, and drawing against the probabilities it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal

from shoal.functional.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical

GAUSSIAN = DiagonalGaussian((0.5, 0.0, -1.0), (2.0, 1.0, 0.25), (3,))
MULTI = MultiCategorical((2, 3, 4, 2), (2, 2))
ALL: list[Distribution] = [Categorical(2), Categorical(18), MULTI, GAUSSIAN]


def parameters_of(distribution: Distribution, *leading: int) -> torch.Tensor:
    return torch.randn(*leading, distribution.size, generator=torch.Generator().manual_seed(1))


def reference(distribution: Distribution, parameters: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if isinstance(distribution, Categorical):
        expected = TorchCategorical(logits=parameters)
        return expected.log_prob(action), expected.entropy()
    if isinstance(distribution, MultiCategorical):
        parts = [TorchCategorical(logits=part) for part in parameters.split(list(distribution.counts), -1)]
        flat = action.flatten(-2)
        return (
            sum(part.log_prob(flat[..., i]) for i, part in enumerate(parts)),
            sum(part.entropy() for part in parts),
        )  # type: ignore[return-value]
    assert isinstance(distribution, DiagonalGaussian)
    mean, log_std = parameters.chunk(2, -1)
    centre, half = torch.tensor(distribution.centre), torch.tensor(distribution.half_width)
    normal = Normal(centre + half * mean, half * log_std.exp())
    return normal.log_prob(action).sum(-1), normal.entropy().sum(-1)


@pytest.mark.parametrize("distribution", ALL, ids=str)
@pytest.mark.parametrize("leading", [(), (6,), (4, 6)])
def test_log_prob_and_entropy_are_those_of_torch(distribution: Distribution, leading: tuple[int, ...]) -> None:
    parameters = parameters_of(distribution, *leading)
    drawn, drawn_log_prob = distribution.sample(parameters.numpy(), np.random.default_rng(0))
    assert drawn.shape == (*leading, *distribution.shape)
    assert drawn_log_prob.shape == leading
    assert drawn_log_prob.dtype == np.float32
    action = torch.as_tensor(drawn)
    log_prob, entropy = reference(distribution, parameters, action)
    torch.testing.assert_close(distribution.log_prob(parameters, action), log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(distribution.entropy(parameters), entropy, rtol=1e-4, atol=1e-5)
    together = distribution.log_prob_and_entropy(parameters, action)
    torch.testing.assert_close(together, (log_prob, entropy), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.as_tensor(drawn_log_prob), log_prob, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distribution", ALL, ids=str)
def test_the_mode_is_at_least_as_probable_as_any_draw(distribution: Distribution) -> None:
    parameters = parameters_of(distribution, 200)
    best = distribution.log_prob(parameters, torch.as_tensor(distribution.mode(parameters.numpy())))
    _, log_prob = distribution.sample(parameters.numpy(), np.random.default_rng(3))
    assert torch.all(best >= torch.as_tensor(log_prob) - 1e-5)


def test_categorical_draws_come_with_their_probabilities() -> None:
    logits = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    action, _ = Categorical(4).sample(np.broadcast_to(logits, (40_000, 4)), np.random.default_rng(0))
    found = np.bincount(action, minlength=4) / len(action)
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(0.25 / len(action)))


def test_an_impossible_action_is_never_drawn() -> None:
    logits = np.tile(np.array([0.0, -np.inf, -1e9], np.float32), (10_000, 1))
    action, log_prob = Categorical(3).sample(logits, np.random.default_rng(0))
    assert np.all(action == 0)
    assert np.all(log_prob == 0.0)


def test_gaussian_draws_have_the_mean_and_spread_asked_for() -> None:
    mean, log_std = np.array([0.3, -0.2, 0.0], np.float32), np.array([-1.0, 0.0, 0.5], np.float32)
    parameters = np.broadcast_to(np.concatenate([mean, log_std]), (40_000, 6))
    action, _ = GAUSSIAN.sample(parameters, np.random.default_rng(0))
    spread = np.array(GAUSSIAN.half_width) * np.exp(log_std)
    assert action.dtype == np.float32
    np.testing.assert_allclose(
        action.mean(0), GAUSSIAN.centre + np.array(GAUSSIAN.half_width) * mean, atol=0.02 * spread.max()
    )
    np.testing.assert_allclose(action.std(0), spread, rtol=0.02)


@pytest.mark.parametrize("distribution", ALL, ids=str)
def test_the_same_generator_draws_the_same_actions(distribution: Distribution) -> None:
    parameters = parameters_of(distribution, 50).numpy()
    one, two = (distribution.sample(parameters, np.random.default_rng(9))[0] for _ in range(2))
    other, _ = distribution.sample(parameters, np.random.default_rng(10))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("distribution", ALL, ids=str)
def test_gradients_agree_with_finite_differences(distribution: Distribution) -> None:
    parameters = parameters_of(distribution, 3).double().requires_grad_()
    drawn, _ = distribution.sample(parameters.detach().float().numpy(), np.random.default_rng(0))
    action = torch.as_tensor(drawn)
    torch.autograd.gradcheck(lambda p: distribution.log_prob_and_entropy(p, action), (parameters,))
