"""Stacks of dense layers as one differentiable operation, of one network or of several of the same form together.

Twin critics are two networks that see the same: each layer of both is one batched product, and a whole stack is one
node of autograd, whose bookkeeping costs as much as the arithmetic of a small layer. Parameters stay those of the
layers, under their names. Of several networks they are copied side by side first, which costs 5 µs for twins of 256
units; that one product then takes 0.95 of the time of two, with two threads 0.8 (docs/decisions/0043).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.nets.dense import EPSILON, Dense, NormalisedDense, sigmoid_tanh

NARROW = 32  # inputs, below which the product for a weight's gradient is faster the other way around


class Stack:
    """[N, inputs] → [N, outputs] of one network, [networks, N, outputs] of several: `nn.Sequential`s of `Dense`,
    `NormalisedDense` and `nn.Linear` with the same shapes."""

    def __init__(self, *networks: nn.Sequential) -> None:
        self._networks = networks
        self._kinds = [_kind(layer) for layer in networks[0]]
        self._names = [
            (layer, name) for network in networks for layer in network for name, _ in layer.named_parameters()
        ]
        self._sizes = [len(list(layer.parameters())) for layer in networks[0]]  # parameters of each layer

    def __call__(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or x.dtype != torch.float32:
            return self.plain(x)
        return _Stack.apply(x, self, *self.parameters())  # type: ignore[no-any-return, no-untyped-call]

    def parameters(self) -> list[Tensor]:
        """Network by network, of each layer by layer; moving a network to another device may have made others."""
        return [getattr(layer, name) for layer, name in self._names]

    def plain(self, x: Tensor) -> Tensor:
        """The same by the layers themselves."""
        if len(self._networks) == 1:
            return self._networks[0](x)  # type: ignore[no-any-return]
        return torch.stack([network(x) for network in self._networks])

    def layers(self, parameters: tuple[Tensor, ...]) -> list[_Layer]:
        """The parameters, network by network and layer by layer, as they are computed with."""
        count = len(self._networks)
        each = len(parameters) // count
        vectors: Iterable[Tensor] = parameters
        if count > 1:
            alike = [parameters[index::each] for index in range(each)]
            vectors = [torch.stack(same) if same[0].dim() > 1 else torch.stack(same).unsqueeze(1) for same in alike]
        found = iter(vectors)
        return [_Layer(kind, *itertools.islice(found, size)) for kind, size in zip(self._kinds, self._sizes)]


class _Layer(NamedTuple):
    kind: str  # "relu", "tanh", "normalised" or "linear"
    weight: Tensor  # [outputs, inputs], of several networks one axis more in front
    bias: Tensor  # [outputs]; of several networks [networks, 1, outputs]
    scale: Tensor | None = None  # of layer normalisation
    shift: Tensor | None = None


def _kind(layer: nn.Module) -> str:
    if isinstance(layer, Dense):
        return layer.activation
    if isinstance(layer, NormalisedDense):
        return "normalised"
    assert isinstance(layer, nn.Linear), layer
    return "linear"


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stack: Stack, *parameters: Tensor) -> Tensor:
        layers = stack.layers(parameters)
        kept: list[tuple[Tensor, ...]] = []  # of each layer its input and what its slope is worked out from
        inputs = x
        for layer in layers:
            y = _product(inputs, layer.weight).add_(layer.bias)
            match layer.kind:
                case "relu":
                    y = y.relu_()
                    kept.append((inputs, y))
                case "tanh":
                    y = sigmoid_tanh(y)
                    kept.append((inputs, y))
                case "normalised":
                    assert layer.scale is not None
                    assert layer.shift is not None
                    normalised, mean, deviation = torch.native_layer_norm(y, [y.shape[-1]], None, None, EPSILON)
                    sums, y = y, sigmoid_tanh(torch.addcmul(layer.shift, normalised, layer.scale))
                    kept.append((inputs, y, sums, normalised, mean, deviation))
                case _:
                    kept.append((inputs,))
            inputs = y
        ctx.save_for_backward(x)
        ctx.stack, ctx.layers, ctx.kept = stack, layers, kept
        return inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        stack: Stack = ctx.stack
        for_x, _, *for_parameters = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody will differentiate the gradient: by torch's own layers
            return _plain_gradients(stack, x, gradient, for_x, for_parameters)
        trained = any(for_parameters)
        layers: list[_Layer] = ctx.layers
        found: list[list[Tensor]] = []  # of each layer, from the last one to the first
        own = False  # whether the gradient's memory is ours, to be written over
        for index in range(len(layers) - 1, -1, -1):
            layer, (inputs, *rest) = layers[index], ctx.kept[index]
            more: list[Tensor] = []
            match layer.kind:
                case "relu":
                    gradient = _into(torch.ops.aten.threshold_backward, gradient, rest[0], 0, own=own)
                case "tanh":
                    gradient = _into(torch.ops.aten.tanh_backward, gradient, rest[0], own=own)
                case "normalised":
                    y, sums, normalised, mean, deviation = rest
                    assert layer.scale is not None
                    gradient = _into(torch.ops.aten.tanh_backward, gradient, y, own=own)
                    if trained:
                        more = [(gradient * normalised).sum(-2), gradient.sum(-2)]
                    gradient = torch.ops.aten.native_layer_norm_backward(
                        gradient * layer.scale,
                        sums,
                        [sums.shape[-1]],
                        mean,
                        deviation,
                        None,
                        None,
                        [True, False, False],
                    )[0]
            if trained:
                found.append([_weight_gradient(gradient, inputs), gradient.sum(-2), *more])
            if index:
                gradient, own = _input_gradient(gradient, layer.weight), True
            elif for_x:
                gradient = _sum_of_products(gradient, layer.weight)
        return gradient if for_x else None, None, *_by_network(found, x.dim(), for_parameters)


def _by_network(found: list[list[Tensor]], dimensions: int, wanted: list[bool]) -> list[Tensor | None]:
    """Gradients of layers from the last to the first, as those of each network's parameters in their order."""
    if not found:
        return [None] * len(wanted)
    ordered = [gradient for layer in reversed(found) for gradient in layer]
    if ordered[0].dim() == dimensions:  # of one network
        return [gradient if asked else None for gradient, asked in zip(ordered, wanted)]
    each = [gradient.unbind(0) for gradient in ordered]
    count = len(each[0])
    parts = [gradients[network] for network in range(count) for gradients in each]
    return [gradient if asked else None for gradient, asked in zip(parts, wanted)]


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """[N, inputs], or of each network its own, times weights [outputs, inputs], or of each network."""
    if weight.dim() == 2:
        return torch.mm(x, weight.T)
    if weight.shape[1] == 1:
        return (x * weight).sum(-1, keepdim=True)
    return torch.bmm(x.expand(len(weight), *x.shape[-2:]), weight.mT)


def _weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """[outputs, inputs], or of each network."""
    if gradient.dim() == 2:
        return torch.mm(x.T, gradient).T if x.shape[1] < NARROW else torch.mm(gradient.T, x)
    x = x.expand(len(gradient), *x.shape[-2:])
    return torch.bmm(x.mT, gradient).mT if x.shape[2] < NARROW else torch.bmm(gradient.mT, x)


def _input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    if weight.shape[-2] == 1:
        return gradient * weight
    return torch.mm(gradient, weight) if weight.dim() == 2 else torch.bmm(gradient, weight)


def _sum_of_products(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of what all networks have seen."""
    if weight.dim() == 2:
        return torch.mm(gradient, weight)
    total = torch.mm(gradient[0], weight[0])
    for one, matrix in zip(gradient[1:], weight[1:]):
        total.addmm_(one, matrix)
    return total


def _into(operation: Any, gradient: Tensor, *arguments: Any, own: bool) -> Tensor:
    """A slope times the gradient, into the gradient's memory where that is ours."""
    if own:
        return operation.grad_input(gradient, *arguments, grad_input=gradient)  # type: ignore[no-any-return]
    return operation(gradient, *arguments)  # type: ignore[no-any-return]


def _plain_gradients(
    stack: Stack, x: Tensor, gradient: Tensor, for_x: bool, for_parameters: list[bool]
) -> tuple[Tensor | None, ...]:
    asked = [tensor for tensor, wanted in zip([x, *stack.parameters()], [for_x, *for_parameters]) if wanted]
    found = iter(torch.autograd.grad(stack.plain(x), asked, gradient, create_graph=True))
    first = next(found) if for_x else None
    return first, None, *(next(found) if wanted else None for wanted in for_parameters)
