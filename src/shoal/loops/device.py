"""Where a learner's batches come from: rollouts of its own network, in environments on its own device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import torch

from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.acting.rollouts import Rollouts
from shoal.envs.tensors import TensorEnvs
from shoal.learning import Learning, Source, Taken
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.user import UserNetwork
from shoal.nets.weights import export_weights
from shoal.state import Scope, State


class RolloutSource(Source):
    """Acts with the weights as they are now, so that learning is on-policy. Each learner of a group has environments of
    its own. With its state the random numbers of acting go on; episodes begin anew."""

    def __init__(
        self,
        learning: Learning,
        *,
        make_envs: Callable[[int, torch.device], TensorEnvs],  # of a seed and of the learner's device
        rows: int,  # transitions of each environment per batch
    ) -> None:
        network = learning.learner.network
        if not isinstance(network, ActorCritic | UserNetwork):
            raise TypeError(f"rollouts are made of policies with values, and {type(network).__name__} is none")
        self._envs = make_envs(learning.seed, learning.device)
        self._policy = ActorCriticPolicy(network, learning.seed + 1, device=str(learning.device), shared=True)
        self._rollouts = Rollouts(self._envs, self._policy, rows)
        self._steps = 0

    def take(self) -> Taken:
        batch = self._rollouts.next()
        transitions = int(batch["valid"].sum())
        self._steps += transitions
        return Taken(batch, transitions)

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        episodes, mean = self._envs.take_returns()
        return {"actor_return": mean} if episodes else {}

    def counts(self) -> Mapping[str, float]:
        return {"env_steps": self._steps}

    def state_dict(self, scope: Scope = "own") -> State:
        return {name: part for name, part in self._policy.state_dict().items() if name != "weights"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._policy.load_state_dict({**state, "weights": export_weights(self._policy.network)})
