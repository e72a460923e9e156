"""The gradient of a whole loss against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def check_gradient(loss: Any, network: nn.Module) -> None:
    """Along a random direction of each parameter tensor."""
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(loss(), parameters)
    random = torch.Generator().manual_seed(0)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients):
        direction = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        sides = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                parameter += sign * step * direction
            sides.append(float(loss().detach()))
            with torch.no_grad():
                parameter -= sign * step * direction
        slope = (sides[0] - sides[1]) / (2.0 * step)
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-4, abs=1e-7)
