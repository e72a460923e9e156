"""Networks beside the one that is trained: a slow copy that targets come from, and the same one without gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


class Target(Generic[Network]):
    """A copy of a network that goes `rate` of the way to it every `every` updates; a rate of 1 copies it."""

    def __init__(self, network: Network, every: int, rate: float = 1.0) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False)
        self._every, self._rate = every, rate
        self._fast: list[Tensor] = list(network.parameters())
        self._slow: list[Tensor] = list(self.network.parameters())
        self._buffers = list(zip(self.network.buffers(), network.buffers()))

    def follow(self, updates: int) -> bool:
        """To be called with the number of the network's updates, after each. Whether it was copied just now."""
        due = updates % self._every == 0
        if due:
            self.approach(self._rate)
        return due and self._rate == 1.0

    def state_dict(self) -> dict[str, Any]:
        return self.network.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state)

    @torch.no_grad()
    def drift(self) -> float:
        """How far the network is from its copy, in parts of its size."""
        return float(_norm(torch._foreach_sub(self._fast, self._slow)) / _norm(self._fast))

    @torch.no_grad()
    def approach(self, rate: float) -> None:
        """Go this part of the way now; 1 copies."""
        if rate == 1.0:
            torch._foreach_copy_(self._slow, self._fast)
        else:
            torch._foreach_lerp_(self._slow, self._fast, rate)
        for own, other in self._buffers:
            own.copy_(other)


class Drift:
    """A target's drift as a measurement: worked out when it is read."""

    def __init__(self, target: Target[Any]) -> None:
        self._target = target

    def __float__(self) -> float:
        return self._target.drift()


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Within, the network's parameters ask for no gradient: its slope by an input then costs nothing for theirs."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def copy_to_targets(owner: Any) -> None:
    """Have the targets among somebody's attributes begin where their networks are now."""
    for part in vars(owner).values():
        if isinstance(part, Target):
            part.approach(1.0)


def _norm(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm
