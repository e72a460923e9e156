"""Dense layers in one operation: the outputs and derivatives of the plain layers that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.nets import dense
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


@pytest.mark.parametrize("inputs", [3, 20])
@pytest.mark.parametrize("kind", ["tanh", "relu", "normalised"])
def test_second_derivatives_are_those_of_finite_differences(kind: str, inputs: int) -> None:
    torch.manual_seed(0)
    layer = (NormalisedDense(inputs, 4) if kind == "normalised" else Dense(inputs, 4, kind)).double()
    names = [name for name, _ in layer.named_parameters()]
    tensors = [parameter.detach().requires_grad_() for parameter in layer.parameters()]
    x = torch.randn(5, inputs, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x, *values: torch.func.functional_call(layer, dict(zip(names, values)), (x,)), (x, *tensors)
    )


def test_a_penalty_on_the_slope_reaches_all_layers() -> None:
    """As in a gradient penalty: the derivative of |dy/dx|², compared with that of the plain layers."""
    torch.manual_seed(0)
    layers = nn.Sequential(NormalisedDense(3, 6), Dense(6, 5, "tanh"), nn.Linear(5, 1))
    plain = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    layers, plain = layers.double(), plain.double()  # in 32 bits the order of sums, which is the machine's, shows
    with torch.no_grad():
        for own, other in zip(layers.parameters(), plain.parameters()):
            other.copy_(own)

    def penalty_gradients(network: nn.Module) -> list[torch.Tensor]:
        x = torch.linspace(-1.0, 1.0, 21, dtype=torch.float64).view(7, 3).requires_grad_()
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        gradients = torch.autograd.grad(slope.square().sum(), list(network.parameters()), allow_unused=True)
        return [torch.zeros(()) if gradient is None else gradient for gradient in gradients]

    torch.testing.assert_close(penalty_gradients(layers), penalty_gradients(plain))


def test_rows_of_very_many_inputs_are_orthogonal_and_as_large_as_torchs() -> None:
    torch.manual_seed(0)
    ours = Dense(dense.LONG + 7, 24, "tanh").weight.detach().double()
    torch.testing.assert_close(ours @ ours.T, 2.0 * torch.eye(24, dtype=torch.float64), atol=1e-4, rtol=0.0)
    theirs = torch.nn.init.orthogonal_(torch.empty(24, dense.LONG + 7), 2.0**0.5).double()
    assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=1e-3)


def test_what_is_not_so_long_begins_as_torch_has_it() -> None:
    torch.manual_seed(3)
    ours = Dense(40, 24, "tanh").weight.detach()
    torch.manual_seed(3)
    assert torch.equal(ours, torch.nn.init.orthogonal_(torch.empty(24, 40), 2.0**0.5))
