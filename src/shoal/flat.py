"""Parameters as one flat vector, and the optimizers that step it: Adam, RMSProp and SGD, with their state.

One vector makes clipping, updating and sending a handful of operations, however many layers there are. The rules are
torch's: Adam is the kernel under `torch.optim.Adam(fused=True)`, called without the class around it, which takes
longer than the update of a small network (docs/decisions/0026). RMSProp has no such kernel in torch, and puts epsilon
outside the root, where the papers have it inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import UserError

KINDS = ("adam", "rmsprop", "sgd")
_DECAY = {"adam": 0.999, "rmsprop": 0.99, "sgd": 0.0}
_MOMENTUM = {"adam": 0.9, "rmsprop": 0.0, "sgd": 0.0}


class FlatOptimizer:
    """Steps one vector along gradients of the same length."""

    def __init__(
        self,
        flat: Tensor,
        kind: str = "adam",
        *,
        epsilon: float = 1e-8,
        decay: float | None = None,  # of the squared gradient's average; None: 0.999 for Adam, 0.99 for RMSProp
        momentum: float | None = None,  # of the gradient's average; None: 0.9 for Adam, 0 for SGD; RMSProp has none
        epsilon_inside: bool = False,  # RMSProp: √(v + ε) as TensorFlow and the papers, not √v + ε
        centred: bool = False,  # RMSProp: v is the gradient's variance, not its mean square
    ) -> None:
        if kind not in KINDS:
            raise UserError(f"There is no optimizer {kind!r}: choose one of {', '.join(KINDS)}.")
        if kind == "rmsprop" and momentum:
            raise UserError(f"RMSProp has no momentum here: leave out momentum={momentum}, or choose adam or sgd.")
        self.flat, self.kind = flat, kind
        self.updates = 0  # steps made
        self._epsilon, self._epsilon_inside, self._centred = epsilon, epsilon_inside, centred
        self._decay = _DECAY[kind] if decay is None else decay
        self._momentum = _MOMENTUM[kind] if momentum is None else momentum
        self._moments: dict[str, Tensor] = {name: torch.zeros_like(flat) for name in self._kept()}
        self._scratch = torch.empty_like(flat) if kind == "rmsprop" else flat
        self._count = torch.zeros((), device=flat.device)  # `updates` as Adam's kernel takes it

    def _kept(self) -> list[str]:
        match self.kind:
            case "adam":
                return ["average", "square"]
            case "rmsprop":
                return ["average", "square"] if self._centred else ["square"]
        return ["average"] if self._momentum else []

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        self.updates += 1
        match self.kind:
            case "adam":
                self._adam(gradient, rate)
            case "rmsprop":
                self._rmsprop(gradient, rate)
            case _:
                self._sgd(gradient, rate)

    def _adam(self, gradient: Tensor, rate: float) -> None:
        self._count.fill_(self.updates)
        torch._fused_adam_(
            [self.flat],
            [gradient],
            [self._moments["average"]],
            [self._moments["square"]],
            [],
            [self._count],
            lr=rate,
            beta1=self._momentum,
            beta2=self._decay,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _rmsprop(self, gradient: Tensor, rate: float) -> None:
        square = self._moments["square"]
        square.mul_(self._decay).addcmul_(gradient, gradient, value=1.0 - self._decay)
        spread, root = square, self._scratch  # not allocated anew: that costs page faults on large networks
        if self._centred:
            average = self._moments["average"].lerp_(gradient, 1.0 - self._decay)
            spread = torch.addcmul(square, average, average, value=-1.0, out=root).clamp_(min=0.0)
        if self._epsilon_inside:
            torch.add(spread, self._epsilon, out=root).sqrt_()
        else:
            torch.sqrt(spread, out=root).add_(self._epsilon)
        self.flat.addcdiv_(gradient, root, value=-rate)

    def _sgd(self, gradient: Tensor, rate: float) -> None:
        if self._momentum:
            gradient = self._moments["average"].mul_(self._momentum).add_(gradient)
        self.flat.add_(gradient, alpha=-rate)

    def state_dict(self) -> dict[str, Any]:
        """The moments and the count of steps; the parameters are their network's."""
        return {"kind": self.kind, "updates": self.updates, "moments": dict(self._moments)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        moments = {name: torch.as_tensor(values) for name, values in state["moments"].items()}
        shapes = {name: tuple(values.shape) for name, values in moments.items()}
        expected = {name: tuple(values.shape) for name, values in self._moments.items()}
        if state["kind"] != self.kind or shapes != expected:
            raise ValueError(
                f"the state is of {state['kind']} with moments {shapes}; this optimizer is {self.kind} with {expected}"
            )
        for name, values in moments.items():
            self._moments[name].copy_(values)
        self.updates = int(state["updates"])


@torch.no_grad()
def flatten(parameters: list[nn.Parameter]) -> Tensor:
    """Move parameters into one flat tensor of which each becomes a view; channels-last weights stay so.

    Tensors that were taken of the parameters before, as by `state_dict()`, keep the old values and follow no step:
    take them again when they are needed.
    """
    if not parameters:
        raise UserError("There is nothing to train: none of the parameters given requires a gradient.")
    flat = torch.cat([_storage_order(parameter).reshape(-1) for parameter in parameters])
    start = 0
    for parameter in parameters:
        ordered = _storage_order(parameter)
        view = flat[start : start + parameter.numel()].view(ordered.shape)
        parameter.data = view.permute(0, 3, 1, 2) if parameter.dim() == 4 else view
        start += parameter.numel()
    return flat


def flat_gradient(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """The gradient as one vector in the order of `flatten`, zero for parameters that the loss does not use, and for
    those that were frozen since they were flattened: none of the rules here moves what never had a gradient."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if len(trained) == len(parameters):
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    else:
        found: dict[int, Tensor] = {}
        if trained and loss.requires_grad:
            some = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            found = {id(parameter): gradient for parameter, gradient in zip(trained, some)}
        gradients = tuple(found.get(id(one), torch.zeros_like(one)) for one in parameters)
    return torch.cat([_storage_order(part).reshape(-1) for part in gradients])


def _storage_order(x: Tensor) -> Tensor:
    """x with its axes in the order in which the flat tensor holds them: convolution weights channels last."""
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x
