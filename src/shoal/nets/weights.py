"""Moving weights between networks and arrays."""

from __future__ import annotations

import weakref
from collections.abc import ItemsView, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.types import Arrays, Columns


class _Collected(NamedTuple):
    own: list[Tensor]  # the parameters and buffers themselves, whose memory an optimizer may move
    places: list[int]  # where their memory was
    named: dict[str, Tensor]  # as it was collected there


_collected: weakref.WeakKeyDictionary[nn.Module, _Collected] = weakref.WeakKeyDictionary()


class NamedTensors(Mapping[str, Tensor]):
    """Parameters and persistent buffers of a network by name, each read from it when it is asked for.

    Optimizers move parameters when they are made; what was taken before would stay at the initial values for ever.
    Collecting the tensors takes as long as publishing a small network, so they are kept until one has moved; which
    tensors a network has is settled when it is first asked.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def _now(self) -> dict[str, Tensor]:
        known = _collected.get(self._network)
        if known is None or known.places != [tensor.data_ptr() for tensor in known.own]:
            _collected[self._network] = known = _collect(self._network)
        return known.named

    def __getitem__(self, name: str) -> Tensor:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def items(self) -> ItemsView[str, Tensor]:
        return self._now().items()


def _collect(network: nn.Module) -> _Collected:
    own = [*network.parameters(), *network.buffers()]
    named = {name: tensor for name, tensor in network.state_dict().items() if isinstance(tensor, Tensor)}
    return _Collected(own, [tensor.data_ptr() for tensor in own], named)


def named_tensors(network: nn.Module) -> NamedTensors:
    """Parameters and persistent buffers by name, sharing the network's memory."""
    return NamedTensors(network)


def export_weights(network: nn.Module) -> Columns:
    """Copies as arrays."""
    return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in named_tensors(network).items()}


def lent_weights(network: nn.Module) -> Columns:
    """The same without copies where the network is on the CPU: for who copies them before they change."""
    return {name: tensor.cpu().numpy() for name, tensor in named_tensors(network).items()}


def export_buffers(network: nn.Module) -> Columns:
    """Copies of the persistent buffers, which nobody's gradient changes."""
    learned = dict(network.named_parameters())
    tensors = named_tensors(network).items()
    return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in tensors if name not in learned}


@torch.no_grad()
def import_buffers(network: nn.Module, buffers: Arrays) -> None:
    """Copy some of the persistent buffers into a network."""
    tensors = named_tensors(network)
    for name, value in buffers.items():
        tensors[name].copy_(torch.from_numpy(value))


@torch.no_grad()
def import_weights(network: nn.Module, weights: Arrays) -> None:
    """Copy weights into a network's tensors."""
    for name, tensor in named_tensors(network).items():
        tensor.copy_(torch.from_numpy(weights[name]))
