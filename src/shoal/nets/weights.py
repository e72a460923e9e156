"""Moving weights between networks and arrays."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor, nn

from shoal.types import Arrays, Columns

_collected: weakref.WeakKeyDictionary[nn.Module, tuple[list[int], dict[str, Tensor]]] = weakref.WeakKeyDictionary()


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, sharing the network's memory as it is now.

    Collecting them takes as long as publishing a small network, so they are kept until a tensor has moved, as
    optimizers move parameters when they are made.
    """
    places = [tensor.data_ptr() for tensor in (*network.parameters(), *network.buffers())]
    known = _collected.get(network)
    if known is None or known[0] != places:
        tensors = {name: tensor for name, tensor in network.state_dict().items() if isinstance(tensor, Tensor)}
        _collected[network] = known = (places, tensors)
    return known[1]


def export_weights(network: nn.Module) -> Columns:
    """Copies as arrays."""
    return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in named_tensors(network).items()}


@torch.no_grad()
def import_weights(network: nn.Module, weights: Arrays) -> None:
    """Copy weights into a network's tensors."""
    for name, tensor in named_tensors(network).items():
        tensor.copy_(torch.from_numpy(weights[name]))
