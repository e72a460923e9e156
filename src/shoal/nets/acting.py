"""The acting side of an actor-critic: observations in, actions and their log-probabilities out, in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal import tree
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.building import export_weights, import_weights, named_tensors
from shoal.nets.numpy_policy import NumpyPolicy, supported
from shoal.nets.user import UserNetwork

Array = npt.NDArray[Any]
State = dict[str, Array]


class ActorPolicy:
    """Draws actions from a network's policy, or takes the most probable ones when `greedy`."""

    def __init__(self, network: ActorCritic | UserNetwork, seed: int, greedy: bool = False) -> None:
        self._network = network.eval()
        self._tensors = named_tensors(network)
        self._distribution = network.distribution
        self._random = np.random.default_rng(seed)
        self._greedy = greedy
        self._fast = NumpyPolicy(network) if isinstance(network, ActorCritic) and supported(network) else None

    def initial_state(self, count: int) -> State:
        return export_weights(self._network.initial_state(count))

    def load(self, weights: Mapping[str, Array]) -> None:
        if self._fast is not None:
            self._fast.load(weights)
        else:
            import_weights(self._tensors, weights)

    def refresh(self) -> None:
        """Act with the network's weights of now, when it is trained in this process and nothing is to be loaded."""
        if self._fast is not None:
            self._fast.load({name: tensor.numpy() for name, tensor in self._tensors.items()})

    def act(self, observation: Any, state: State, first: Array) -> tuple[Array, State, dict[str, Array]]:
        """observation [B, ...], first bool [B] → action [B, ...], state after, {"log_prob": [B]} (none if greedy)."""
        if self._fast is not None:
            parameters = self._fast(observation)
        else:
            parameters, state = self._forward(observation, state, first)
        if self._greedy:
            return self._distribution.mode(parameters), state, {}
        action, log_prob = self._distribution.sample(parameters, self._random)
        return action, state, {"log_prob": log_prob}

    @torch.inference_mode()
    def _forward(self, observation: Any, state: State, first: Array) -> tuple[Array, State]:
        rows = tree.map(lambda x: torch.from_numpy(x).unsqueeze(0), observation)
        before = {name: torch.from_numpy(array) for name, array in state.items()}
        parameters, _, after = self._network(rows, before, torch.from_numpy(first).unsqueeze(0))
        return parameters[0].numpy(), {name: tensor.numpy() for name, tensor in after.items()}
