"""Dense layers in one operation: the outputs and derivatives of the plain layers that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.nets.dense import Dense, NormalisedDense


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("inputs", [3, 20])
def test_a_dense_layer_is_linear_and_activation_with_the_same_gradients(activation: str, inputs: int) -> None:
    layer = Dense(inputs, 6, activation)
    nn.init.normal_(layer.bias)
    plain = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh() if activation == "tanh" else nn.ReLU())
    plain[0].load_state_dict(layer.state_dict())
    x = torch.randn(11, inputs, requires_grad=True)
    weight = torch.randn(11, 6)
    torch.testing.assert_close(layer(x), plain(x))
    found = torch.autograd.grad((layer(x) * weight).sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad((plain(x) * weight).sum(), [x, *plain.parameters()])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("inputs", [3, 20])
def test_a_dense_layers_gradient_agrees_with_finite_differences(inputs: int) -> None:
    layer = Dense(inputs, 4, "tanh").double()
    x = torch.randn(5, inputs, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda x, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, (x,)),
        (x, *[parameter.detach().requires_grad_() for parameter in layer.parameters()]),
    )


@pytest.mark.parametrize("inputs", [3, 20])
def test_a_normalised_layer_is_linear_layer_normalisation_and_tanh_with_the_same_gradients(inputs: int) -> None:
    layer = NormalisedDense(inputs, 6)
    for vector in (layer.bias, layer.scale, layer.shift):
        nn.init.normal_(vector)
    plain = nn.Sequential(nn.Linear(inputs, 6), nn.LayerNorm(6), nn.Tanh())
    with torch.no_grad():
        for own, other in zip(layer.parameters(), plain.parameters()):
            other.copy_(own)
    x = torch.randn(11, inputs, requires_grad=True)
    weight = torch.randn(11, 6)
    torch.testing.assert_close(layer(x), plain(x))
    found = torch.autograd.grad((layer(x) * weight).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, torch.autograd.grad((plain(x) * weight).sum(), [x, *plain.parameters()]))
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    torch.testing.assert_close(torch.autograd.grad((layer(x) * weight).sum(), [x])[0], found[0])
