"""Dense layers with their activation as one differentiable operation.

For a few thousand rows and tens of units most of the time of `nn.Linear` and `nn.Tanh` on the CPU goes into three
things, done better here: torch's tanh (290 µs for 1,344 × 64, by way of the sigmoid 130), the weight gradient of a
layer with few inputs (135 µs with four, the transposed product 26), and autograd's bookkeeping.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.errors import UserError

ACTIVATIONS = ("tanh", "relu")
EPSILON = 1e-5  # of layer normalisation
LONG = 1 << 16  # inputs, from which on rows of normal numbers are nearly orthogonal already


@torch.no_grad()
def orthogonal_(weight: Tensor, gain: float = 1.0) -> None:
    """Rows (or columns, where those are fewer) that are orthogonal, as torch draws them; of very many inputs by their
    Gram matrix, which gives the same in an eighth of the time (3,000,000 × 64: 2.4 s for 19.3 on one core)."""
    if weight.ndim != 2 or weight.shape[1] < LONG or weight.shape[1] < 16 * weight.shape[0]:
        nn.init.orthogonal_(weight, gain)
        return
    nn.init.normal_(weight)
    triangle = torch.linalg.cholesky((weight @ weight.T).double())
    weight.copy_(torch.linalg.inv(triangle).to(weight.dtype) @ weight)
    weight.mul_(gain)


class Dense(nn.Module):
    """[N, inputs] → activation(x · weightᵀ + bias) [N, outputs]; orthogonal weights and zero biases at the start."""

    def __init__(self, inputs: int, outputs: int, activation: str) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"There is no activation {activation!r}: choose one of {', '.join(ACTIVATIONS)}.")
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        orthogonal_(self.weight, math.sqrt(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return _Dense.apply(x, self.weight, self.bias, self.activation)  # type: ignore[no-any-return, no-untyped-call]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        y = torch.addmm(bias, x, weight.T)
        y = y.relu_() if activation == "relu" else sigmoid_tanh(y)
        ctx.save_for_backward(x, weight, y)
        ctx.activation = activation
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of operations that have derivatives themselves, so that penalties on gradients can be trained."""
        x, weight, y = ctx.saved_tensors
        if ctx.activation == "relu":
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        else:
            gradient = torch.ops.aten.tanh_backward(gradient, y)
        return *_linear_backward(ctx, gradient, x, weight), None


class NormalisedDense(nn.Module):
    """[N, inputs] → tanh(layer normalisation(x · weightᵀ + bias)) [N, outputs] (Ba 2016)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.scale = nn.Parameter(torch.ones(outputs))
        self.shift = nn.Parameter(torch.zeros(outputs))
        orthogonal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return _NormalisedDense.apply(x, self.weight, self.bias, self.scale, self.shift)  # type: ignore[no-any-return, no-untyped-call]


class _NormalisedDense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        sums = torch.addmm(bias, x, weight.T)
        normalised, mean, deviation = torch.native_layer_norm(sums, [len(scale)], scale, shift, EPSILON)
        y = sigmoid_tanh(normalised)
        ctx.save_for_backward(x, weight, bias, scale, shift, sums, mean, deviation, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, shift, sums, mean, deviation, y = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate the gradient, and `sums` has no history
            return _plain_gradients(ctx, gradient, x, weight, bias, scale, shift)
        gradient = torch.ops.aten.tanh_backward(gradient, y)
        gradient, for_scale, for_shift = torch.ops.aten.native_layer_norm_backward(
            gradient, sums, [len(scale)], mean, deviation, scale, shift, [True, *ctx.needs_input_grad[3:]]
        )
        return *_linear_backward(ctx, gradient, x, weight), for_scale, for_shift


def _plain_gradients(ctx: Any, gradient: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a `NormalisedDense` by torch's own layers, which can be differentiated again."""
    x, weight, bias, scale, shift = inputs
    y = torch.tanh(functional.layer_norm(functional.linear(x, weight, bias), [len(scale)], scale, shift, EPSILON))
    asked = [tensor for tensor, wanted in zip(inputs, ctx.needs_input_grad) if wanted]
    found = iter(torch.autograd.grad(y, asked, gradient, create_graph=True))
    return tuple(next(found) if wanted else None for wanted in ctx.needs_input_grad)


def sigmoid_tanh(x: Tensor) -> Tensor:
    """In place."""
    return x.tanh_() if x.is_cuda else x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def _linear_backward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
    """For the first three inputs, x, weight and bias, as far as somebody asks."""
    for_x = gradient @ weight if ctx.needs_input_grad[0] else None
    if not ctx.needs_input_grad[1]:
        return for_x, None, None
    for_weight = (x.T @ gradient).T if x.shape[1] < 16 else gradient.T @ x
    return for_x, for_weight, gradient.sum(0)


def mlp(inputs: int, hidden: tuple[int, ...], activation: str) -> nn.Sequential:
    """Dense layers of the given widths."""
    widths = (inputs, *hidden)
    return nn.Sequential(*[Dense(before, after, activation) for before, after in zip(widths, hidden)])
