"""Acting with an actor-critic: observations in, actions and their log-probabilities out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal import tree
from shoal.acting.network_policy import NetworkPolicy, to_array
from shoal.acting.numpy_actor_critic import NumpyActorCritic, supported
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.user import UserNetwork
from shoal.nets.weights import named_tensors
from shoal.types import Array, Columns


class ActorCriticPolicy(NetworkPolicy[ActorCritic | UserNetwork]):
    """Draws actions from a network's policy, or takes the most probable ones when `greedy`."""

    def __init__(
        self, network: ActorCritic | UserNetwork, seed: int, *, greedy: bool = False, device: str = "cpu"
    ) -> None:
        super().__init__(network, seed, device, NumpyActorCritic if supported(network) else None)
        self._distribution = network.distribution
        self._greedy = greedy

    def initial_state(self, count: int) -> Columns:
        return {name: np.array(to_array(x)) for name, x in self.network.initial_state(count).items()}

    def refresh(self) -> None:
        """Act with the network's weights of now, when it is trained in this process and nothing is to be loaded."""
        self._weights = None
        if self.mirror is not None:
            self.mirror.load({name: tensor.numpy() for name, tensor in named_tensors(self.network).items()})

    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...], first bool [B] → action [B, ...], state after, {"log_prob": [B]} (none if greedy)."""
        if self.mirror is not None:
            parameters = self.mirror(observation)
        else:
            parameters, state = self._forward(observation, state, first)
        if self._greedy:
            return self._distribution.mode(parameters), state, {}
        action, log_prob = self._distribution.sample(parameters, self.random)
        return action, state, {"log_prob": log_prob}

    @torch.inference_mode()
    def _forward(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns]:
        if self.network.training:  # whoever trains the same network has left it so
            self.network.eval()
        rows, before, begins = self.to_device((observation, state, first))
        parameters, _, after = self.network(tree.map(lambda x: x.unsqueeze(0), rows), before, begins.unsqueeze(0))
        return to_array(parameters[0]), {name: to_array(x) for name, x in after.items()}
