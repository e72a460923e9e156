"""Acting with an actor-critic: observations in, actions and their log-probabilities out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal import tree
from shoal.acting.network_policy import NetworkPolicy, to_array
from shoal.acting.numpy_actor_critic import NumpyActorCritic, supported
from shoal.acting.policy import Acted, Choice, State
from shoal.functional.arrays import Random
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.user import UserNetwork
from shoal.nets.weights import named_tensors
from shoal.types import Values


class ActorCriticPolicy(NetworkPolicy[ActorCritic | UserNetwork]):
    """Draws actions from a network's policy, or takes the most probable ones when `greedy`."""

    def __init__(
        self,
        network: ActorCritic | UserNetwork,
        seed: int,
        *,
        greedy: bool = False,
        device: str = "cpu",
    ) -> None:
        mirror = NumpyActorCritic if supported(network) else None
        super().__init__(network, seed, greedy=greedy, device=device, mirror=mirror)
        self._distribution = network.distribution

    def initial_state(self, count: int) -> State:
        return {name: np.array(to_array(x)) for name, x in self.network.initial_state(count).items()}

    def refresh(self) -> None:
        """Act with the network's weights of now, when it is trained in this process and nothing is to be loaded."""
        self._weights = None
        if self.mirror is not None:
            self.mirror.load({name: tensor.numpy() for name, tensor in named_tensors(self.network).items()})

    def greedy(self, observation: Any, state: State) -> Choice:
        parameters, after = self._parameters(observation, state)
        return Choice(self._distribution.mode(parameters), parameters, after)

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        """The columns to record are {"log_prob": [B]}."""
        parameters, after = self._parameters(observation, state)
        action, log_prob = self._distribution.sample(parameters, random)
        return action, after, {"log_prob": log_prob}

    def _parameters(self, observation: Any, state: State) -> tuple[Values, State]:
        """Those of the distribution, [B, size], and the state after this row."""
        if isinstance(observation, np.ndarray):
            return self.mirror(observation), state
        some = tree.leaf(observation)
        nowhere = torch.zeros(
            1, some.shape[0], dtype=torch.bool, device=some.device
        )  # the state is zero where it begins
        parameters, _, after = self.network(tree.map(lambda x: x.unsqueeze(0), observation), state, nowhere)
        return parameters[0], after
