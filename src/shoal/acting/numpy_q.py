"""The built-in feed-forward Q network in plain numpy, its dueling head folded into one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard, cast

import numpy as np
from torch import nn

from shoal.nets.dense import Dense
from shoal.nets.encoder import VectorEncoder
from shoal.nets.q import DuelingHead, QNetwork
from shoal.types import Array, Arrays


class NumpyQ:
    """Observations [B, ...] → Q [B, actions], or quantiles [B, actions, quantiles], of a network over vectors."""

    def __init__(self, network: QNetwork) -> None:
        self._head, self._encoder = network.head, network.encoder
        activations: dict[str, str] = {f"torso.{i}": layer.activation for i, layer in enumerate(network.torso)}  # type: ignore[misc]
        if network.head.streams is not None:
            activations["head.streams"] = network.head.streams.activation
        self._hidden = Layers(activations)
        self.load({name: tensor.numpy() for name, tensor in network.state_dict().items()})

    def load(self, weights: Arrays) -> None:
        """Copies what it needs of the network's named weights."""
        self._hidden.load(weights)
        self._q = folded_head(weights, self._head)

    def layers(self) -> list[tuple[Array, Array, str]] | None:
        """Weight, bias and activation of each; None where it is more than layers."""
        if self._head.quantiles or self._head.streams is not None:
            return None
        weight, bias = self._q
        found = [*self._hidden.plain(), (weight, bias[:, 0], "")]
        if self._encoder.bytes:
            found[0] = (found[0][0] / np.float32(255.0), *found[0][1:])
        return found

    def __call__(self, observation: Array) -> Array:
        weight, bias = self._q
        q: Array = (weight @ self._hidden(vectors(self._encoder, observation)) + bias).T
        quantiles = self._head.quantiles
        return q.reshape(len(q), self._head.actions, quantiles) if quantiles else q


class Layers:
    """Dense layers by name, with their activations: features [n, B] → [m, B]."""

    def __init__(self, activations: Mapping[str, str]) -> None:
        self._activations = {name: np.tanh if kind == "tanh" else _relu for name, kind in activations.items()}

    def load(self, weights: Arrays) -> None:
        self._layers = [
            (np.array(weights[f"{name}.weight"]), np.array(weights[f"{name}.bias"])[:, None], activation)
            for name, activation in self._activations.items()
        ]

    def plain(self) -> list[tuple[Array, Array, str]]:
        return [
            (weight, bias[:, 0], "tanh" if activation is np.tanh else "relu")
            for weight, bias, activation in self._layers
        ]

    def __call__(self, x: Array) -> Array:
        for weight, bias, activation in self._layers:
            x = weight @ x
            x += bias
            activation(x, out=x)
        return x


def vectors(encoder: nn.Module, observation: Array) -> Array:
    """What a `VectorEncoder` gives, features first: [B, ...] → [n, B]."""
    x: Array = observation.reshape(len(observation), -1).T.astype(np.float32, copy=False)
    return x / np.float32(255.0) if encoder.bytes else x


def folded_head(weights: Arrays, head: DuelingHead) -> tuple[Array, Array]:
    """Weight and bias of a dueling head as one layer: V + A − mean A is linear in what both of its parts see."""
    atoms = head.quantiles or 1
    value, advantage = weights["head.value.weight"], weights["head.advantage.weight"]
    centred = _centred(advantage.reshape(head.actions, atoms, -1))
    if head.streams is not None:
        shared = np.broadcast_to(value, (head.actions, *value.shape))
        weight = np.concatenate([shared, centred], axis=-1)
    else:
        weight = value + centred
    bias = weights["head.value.bias"] + _centred(weights["head.advantage.bias"].reshape(head.actions, atoms))
    return weight.reshape(head.actions * atoms, -1), bias.reshape(-1, 1)


LAYERS = (VectorEncoder, nn.Sequential, Dense, DuelingHead, nn.Linear)


def supported(network: object) -> TypeGuard[QNetwork]:
    """Whether a network is the built-in one over a plain vector."""
    return is_of(network, QNetwork, *LAYERS)


def is_of(network: object, kind: type[nn.Module], *layers: type[nn.Module]) -> bool:
    """Whether a network and all its layers are exactly of these kinds: one that is derived from them, such as a noisy
    layer, may compute something else."""
    return isinstance(network, kind) and all(type(layer) in (kind, *layers) for layer in network.modules())


def _centred(advantage: Array) -> Array:
    return cast(Array, advantage - advantage.mean(0))


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0.0, out=out)
