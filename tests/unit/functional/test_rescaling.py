"""Value rescaling and its inverse."""

from __future__ import annotations

import math

import torch

from shoal.functional.rescaling import inverse_rescale, rescale

POINTS = [-1e6, -300.0, -1.0, -1e-3, 0.0, 1e-6, 0.5, 1.0, 20.0, 1e4, 1e6]


def test_rescaling_is_the_papers_formula() -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    expected = [math.copysign(math.sqrt(abs(v) + 1.0) - 1.0, v) + 1e-3 * v for v in POINTS]
    torch.testing.assert_close(rescale(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_the_inverse_is_the_papers_formula() -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    e = 1e-3
    root = torch.sqrt(1.0 + 4.0 * e * (x.abs() + 1.0 + e))
    expected = torch.sign(x) * (((root - 1.0) / (2.0 * e)) ** 2 - 1.0)
    torch.testing.assert_close(inverse_rescale(x), expected, rtol=1e-7, atol=1e-10)


def test_the_inverse_undoes_rescaling_to_the_precision_of_float32() -> None:
    x = torch.cat([torch.logspace(-6, 6, 200), -torch.logspace(-6, 6, 200), torch.zeros(1)])
    torch.testing.assert_close(inverse_rescale(rescale(x)), x, rtol=2e-6, atol=0.0)
    torch.testing.assert_close(rescale(inverse_rescale(x)), x, rtol=2e-6, atol=0.0)


def test_the_gradients_of_rescaling_and_its_inverse_are_those_of_finite_differences() -> None:
    x = torch.tensor([-30.0, -0.3, 0.4, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rescale, (x,))
    assert torch.autograd.gradcheck(inverse_rescale, (x,))


def test_rescaling_has_a_finite_slope_at_zero() -> None:
    x = torch.zeros(1, requires_grad=True)
    (slope,) = torch.autograd.grad(rescale(x).sum(), x)
    torch.testing.assert_close(slope, torch.tensor([0.501]))
