"""The built-in feed-forward Q network in plain numpy, its dueling head folded into one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from shoal.nets.encoder import VectorEncoder
from shoal.nets.q import QNetwork

Array = npt.NDArray[Any]


class NumpyQ:
    """Observations [B, ...] → Q [B, actions], or quantiles [B, actions, quantiles], of a network over vectors."""

    def __init__(self, network: QNetwork) -> None:
        head = network.head
        layers: dict[str, Any] = {f"torso.{i}": layer for i, layer in enumerate(network.torso)}
        if head.streams is not None:
            layers["head.streams"] = head.streams
        self._activations = {name: np.tanh if layer.activation == "tanh" else _relu for name, layer in layers.items()}
        self._streams = head.streams is not None
        self._actions, self._quantiles = head.actions, head.quantiles
        self._bytes: bool = network.encoder.bytes  # type: ignore[assignment]
        self.load({name: tensor.numpy() for name, tensor in network.state_dict().items()})

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copies what it needs of the network's named weights."""
        self._hidden = [
            (np.array(weights[f"{name}.weight"]), np.array(weights[f"{name}.bias"])[:, None], activation)
            for name, activation in self._activations.items()
        ]
        # V + A − mean A is linear in what both parts of the head see, so it is one product.
        atoms = self._quantiles or 1
        value, advantage = weights["head.value.weight"], weights["head.advantage.weight"]
        centred = _centred(advantage.reshape(self._actions, atoms, -1))
        if self._streams:
            shared = np.broadcast_to(value, (self._actions, *value.shape))
            weight = np.concatenate([shared, centred], axis=-1)
        else:
            weight = value + centred
        bias = weights["head.value.bias"] + _centred(weights["head.advantage.bias"].reshape(self._actions, atoms))
        self._head = weight.reshape(self._actions * atoms, -1), bias.reshape(-1, 1)

    def __call__(self, observation: Array) -> Array:
        x = observation.reshape(len(observation), -1).T.astype(np.float32, copy=False)  # features first: [n, B]
        if self._bytes:
            x = x / np.float32(255.0)
        for weight, bias, activation in self._hidden:
            x = weight @ x
            x += bias
            activation(x, out=x)
        weight, bias = self._head
        q: Array = (weight @ x + bias).T
        return q.reshape(len(q), self._actions, self._quantiles) if self._quantiles else q


def supported(network: object) -> TypeGuard[QNetwork]:
    """Whether a network is the built-in one over a plain vector."""
    return isinstance(network, QNetwork) and isinstance(network.encoder, VectorEncoder)


def _centred(advantage: Array) -> Array:
    return cast(Array, advantage - advantage.mean(0))


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0.0, out=out)
