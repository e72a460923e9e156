"""A stack of dense layers is what its layers are: outputs, gradients and their gradients, of one network or several."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from shoal.nets.control import head_mlp
from shoal.nets.stacks import Stack
from shoal.nets.targets import frozen


def networks(count: int, activation: str, normalised: bool, outputs: int) -> list[nn.Sequential]:
    torch.manual_seed(count)
    return [head_mlp(7, (33, 40), activation, outputs, normalised) for _ in range(count)]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_stack_computes_what_its_layers_do(count: int, activation: str, normalised: bool, outputs: int) -> None:
    made = networks(count, activation, normalised, outputs)
    stack, x = Stack(*made), torch.randn(50, 7, requires_grad=True)
    asked = [x, *(parameter for network in made for parameter in network.parameters())]
    expected = stack.plain(x)
    found = stack(x)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for own, other in zip(
        torch.autograd.grad((found * weights).sum(), asked), torch.autograd.grad((expected * weights).sum(), asked)
    ):
        assert own.shape == other.shape
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def penalty(outputs: Tensor, x: Tensor, asked: list[Tensor]) -> tuple[Tensor, ...]:
    (slope,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), asked, allow_unused=True)


@pytest.mark.parametrize("normalised", [False, True])
def test_gradients_can_be_differentiated(normalised: bool) -> None:
    made = networks(2, "tanh", normalised, 1)
    stack, x = Stack(*made), torch.randn(20, 7, requires_grad=True)
    asked: list[Tensor] = [parameter for network in made for parameter in network.parameters()]
    for own, other in zip(penalty(stack(x), x, asked), penalty(stack.plain(x), x, asked)):
        assert (own is None) == (other is None)
        if own is not None:
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-8)


def test_frozen_networks_give_the_slope_by_their_input_alone() -> None:
    made = networks(2, "relu", False, 1)
    stack, x = Stack(*made), torch.randn(20, 7, requires_grad=True)
    (expected,) = torch.autograd.grad(stack.plain(x).sum(), x)
    with frozen(made[0]), frozen(made[1]):
        outputs = stack(x)
    (found,) = torch.autograd.grad(outputs.sum(), x)
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(outputs.sum(), list(made[0].parameters()))


def test_a_layer_that_is_frozen_gets_no_gradient_and_the_others_do() -> None:
    (made,) = networks(1, "relu", False, 2)
    made[0].requires_grad_(False)
    stack = Stack(made)
    stack(torch.randn(20, 7)).sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in made[0].parameters())
    assert all(parameter.grad is not None for parameter in made[1].parameters())


def test_a_copy_computes_with_its_own_parameters() -> None:
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = networks(1, "relu", False, 2)[0]
            self.stack = Stack(self.layers)

    owner = Owner()
    other, x = copy.deepcopy(owner), torch.randn(5, 7)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other.stack(x).abs().sum() == 0.0
    assert owner.stack(x).abs().sum() > 0.0


def test_a_network_that_was_moved_computes_where_it_is() -> None:
    made = networks(2, "relu", False, 2)
    stack = Stack(*made)
    for network in made:
        network.to("meta")  # which makes other parameters, unlike a GPU
    assert stack(torch.randn(5, 7, device="meta")).device.type == "meta"
