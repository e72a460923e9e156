"""The squashed Gaussian's draws and densities are those of torch's own transformed distribution."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from shoal.functional.squashed import squashed_gaussian, squashed_log_prob


def parameters(seed: int = 0, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    mean, log_std, noise = (torch.randn(50, 3, generator=random, dtype=torch.float64) for _ in range(3))
    return mean * spread, log_std.clamp(-2.0, 1.0), noise


def test_log_densities_are_those_of_a_transformed_distribution() -> None:
    mean, log_std, noise = parameters()
    action, log_prob = squashed_gaussian(mean=mean, log_std=log_std, noise=noise)
    transformed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    torch.testing.assert_close(log_prob, Independent(transformed, 1).log_prob(action), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))


def test_the_density_of_an_action_is_that_of_the_draw_that_gave_it() -> None:
    mean, log_std, noise = parameters(2)
    action, log_prob = squashed_gaussian(mean=mean, log_std=log_std, noise=noise)
    torch.testing.assert_close(squashed_log_prob(mean=mean, log_std=log_std, action=action), log_prob)
    at_the_bound = squashed_log_prob(mean=mean, log_std=log_std, action=torch.ones_like(mean))
    assert torch.isfinite(at_the_bound).all()


def test_a_density_far_outside_stays_finite_and_right_where_tanh_rounds_to_one() -> None:
    mean, log_std, noise = (x.float() for x in parameters(spread=1.0))
    mean = mean + 20.0
    action, log_prob = squashed_gaussian(mean=mean, log_std=log_std, noise=noise)
    assert (action == 1.0).all()
    assert torch.isfinite(log_prob).all()
    _, exact = squashed_gaussian(mean=mean.double(), log_std=log_std.double(), noise=noise.double())
    torch.testing.assert_close(log_prob.double(), exact, rtol=1e-4, atol=1e-3)
    u = (mean.double() + log_std.double().exp() * noise.double())[0]
    by_hand = Normal(mean[0].double(), log_std[0].double().exp()).log_prob(u) - torch.log(4.0 * torch.exp(-2.0 * u))
    torch.testing.assert_close(exact[0], by_hand.sum())  # 1 − tanh² → 4 exp(−2u)


def test_gradients_flow_through_mean_and_deviation_as_by_reparametrisation() -> None:
    mean, log_std, noise = parameters(1)
    for tensor in (mean, log_std):
        tensor.requires_grad_()

    def by_torch() -> torch.Tensor:
        u = mean + log_std.exp() * noise
        density = Normal(mean, log_std.exp()).log_prob(u) - torch.log1p(-torch.tanh(u).square())
        return density.sum()

    ours = torch.autograd.grad(
        squashed_gaussian(mean=mean, log_std=log_std, noise=noise).log_prob.sum(), (mean, log_std)
    )
    for a, b in zip(ours, torch.autograd.grad(by_torch(), (mean, log_std))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    (by_mean,) = torch.autograd.grad(squashed_gaussian(mean=mean, log_std=log_std, noise=noise).action.sum(), mean)
    torch.testing.assert_close(by_mean, 1.0 - torch.tanh(mean + log_std.exp() * noise).square())
