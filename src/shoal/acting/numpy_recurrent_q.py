"""The built-in recurrent Q network in plain numpy, one row at a time: acting takes half the time that torch needs."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
from torch import nn

from shoal.acting.numpy_q import LAYERS, Layers, folded_head, is_of, vectors
from shoal.nets.actor_critic import LSTM
from shoal.nets.q import RecurrentQNetwork
from shoal.types import Array, Arrays, Columns


class NumpyRecurrentQ:
    """Steps a network with an LSTM over vectors: features lie along the first axis of all that is computed here."""

    def __init__(self, network: RecurrentQNetwork) -> None:
        head, core = network.head, network.core
        self._torso = Layers({f"torso.{i}": layer.activation for i, layer in enumerate(network.torso)})  # type: ignore[misc]
        self._streams = Layers({"head.streams": head.streams.activation} if head.streams is not None else {})
        self._head = head
        self._encoder = network.encoder
        self._actions, self._width = network.actions, core.width
        self.load({name: tensor.numpy() for name, tensor in network.state_dict().items()})

    def load(self, weights: Arrays) -> None:
        """Copies what it needs of the network's named weights."""
        self._torso.load(weights)
        self._streams.load(weights)
        self._q = folded_head(weights, self._head)
        weight = np.concatenate([weights["core.cell.weight_ih"], weights["core.cell.weight_hh"]], axis=1)
        bias = (weights["core.cell.bias_ih"] + weights["core.cell.bias_hh"])[:, None]
        # Gates input, forget, cell, output become input, forget, output, cell. The first three are sigmoids, taken as
        # (1 + tanh(x/2))/2, so that one call does for all four.
        entry, forget, cell, output = np.split(np.arange(4 * self._width), 4)
        order = np.concatenate([entry, forget, output, cell])
        halves = np.where(np.arange(4 * self._width) < 3 * self._width, 0.5, 1.0).astype(np.float32)[:, None]
        self._weight, self._bias = weight[order] * halves, bias[order] * halves

    def __call__(
        self, observation: Array, last_action: Array, last_reward: Array, state: Arrays
    ) -> tuple[Array, Columns]:
        """observation [B, ...], last_action int [B] counted from 1 (0: none), last_reward [B], state [B, width] each.

        Returns Q [B, actions] and the state after this row.
        """
        features = self._torso(vectors(self._encoder, observation))
        begin, count = len(features), len(observation)
        inputs = np.zeros((self._weight.shape[1], count), np.float32)
        inputs[:begin] = features
        acted = np.flatnonzero(last_action)
        inputs[begin - 1 + last_action[acted], acted] = 1.0
        inputs[begin + self._actions] = last_reward
        inputs[begin + self._actions + 1 :] = state["hidden"].T
        gates = self._weight @ inputs
        gates += self._bias
        np.tanh(gates, out=gates)
        entry, forget, output, new = gates.reshape(4, self._width, count)
        open_ = gates[: 3 * self._width]
        open_ *= 0.5
        open_ += 0.5
        cell = forget * state["cell"].T
        cell += entry * new
        hidden = np.tanh(cell)
        hidden *= output
        weight, bias = self._q
        q: Array = (weight @ self._streams(hidden) + bias).T
        return q, {"hidden": np.ascontiguousarray(hidden.T), "cell": np.ascontiguousarray(cell.T)}


def supported(network: object) -> TypeGuard[RecurrentQNetwork]:
    """Whether a network is the built-in one over a plain vector, with the built-in core."""
    if not is_of(network, RecurrentQNetwork, LSTM, nn.LSTMCell, *LAYERS):
        return False
    return isinstance(network, RecurrentQNetwork) and not network.head.quantiles
