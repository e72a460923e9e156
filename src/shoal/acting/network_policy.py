"""What policies that act on a network share: its weights, its device, and their random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shoal import tree
from shoal.nets.images import compute_in
from shoal.nets.weights import export_weights, import_weights
from shoal.types import Array, Arrays, Columns

Network = TypeVar("Network", bound=nn.Module)


class Mirror(Protocol):
    """A small network computed without torch, whose overhead would be most of the time."""

    def load(self, weights: Arrays) -> None: ...


class NetworkPolicy(Generic[Network]):
    """Acts on the device it was given. On a CPU the `Mirror` that `mirror` makes of it may stand in for the network."""

    def __init__(
        self, network: Network, seed: int, device: str = "cpu", mirror: Callable[[Any], Mirror] | None = None
    ) -> None:
        self.network = compute_in(network.to(device).eval(), "float32")  # bfloat16 is the learners'
        self.device = torch.device(device)
        self.random = np.random.default_rng(seed)
        self.mirror: Any = mirror(network) if mirror is not None and self.device.type == "cpu" else None
        self._weights: Arrays | None = None  # those that were loaded last

    def initial_state(self, count: int) -> Columns:
        return {}

    def load(self, weights: Arrays) -> None:
        if self.mirror is not None:
            self.mirror.load(weights)
        else:
            import_weights(self.network, weights)
        self._weights = weights

    def to_device(self, observation: Any) -> Any:
        """Arrays as tensors on the policy's device."""
        return tree.map(lambda array: torch.from_numpy(array).to(self.device), observation)

    def state_dict(self) -> dict[str, Any]:
        weights = export_weights(self.network) if self._weights is None else dict(self._weights)
        return {"weights": weights, "random": copy.deepcopy(self.random.bit_generator.state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load({name: np.asarray(array) for name, array in state["weights"].items()})  # as read, perhaps tensors
        self.random.bit_generator.state = copy.deepcopy(state["random"])


class ExploringPolicy(NetworkPolicy[Network]):
    """One whose exploration differs from environment to environment: a number for each of a run's, None if greedy."""

    def __init__(
        self,
        network: Network,
        seed: int,
        device: str,
        exploration: Array | None,
        mirror: Callable[[Any], Mirror] | None = None,
    ) -> None:
        super().__init__(network, seed, device, mirror)
        self._all_environments, self.exploration = exploration, exploration

    def set_environments(self, environments: Array) -> None:
        """The rows of the coming calls of `act` are these environments of the run, int [B]."""
        if self._all_environments is not None:
            self.exploration = self._all_environments[environments]


def to_array(tensor: Tensor) -> Array:
    return tensor.cpu().numpy()
