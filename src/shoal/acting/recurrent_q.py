"""Acting with a recurrent Q network: ε-greedy, with last action and reward kept in the recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from shoal import tree
from shoal.acting.network_policy import ExploringPolicy, to_array
from shoal.acting.numpy_recurrent_q import NumpyRecurrentQ, supported
from shoal.acting.policy import LAST_REWARD
from shoal.acting.q import VALUES, PriorityLaw, give_priorities
from shoal.functional.exploration import epsilon_greedy
from shoal.nets.q import RecurrentQNetwork
from shoal.nets.user_q import UserRecurrentQ
from shoal.types import Array, Columns

Values = TypeVar("Values")  # arrays, or tensors


def core_state(state: Mapping[str, Values]) -> dict[str, Values]:
    """The network's own part of a policy's state."""
    return {name.removeprefix("core/"): values for name, values in state.items() if name.startswith("core/")}


class RecurrentQPolicy(ExploringPolicy[RecurrentQNetwork | UserRecurrentQ]):
    """Acts greedily, or with an ε for each environment of a run.

    Its state is the network's under "core/…" (`core_state`), `LAST_REWARD`, which who steps the environments fills in,
    and "last_action", counted from 1: 0 says that there was none yet in this episode. With a law for priorities it
    records the values it acted on.
    """

    def __init__(
        self,
        network: RecurrentQNetwork | UserRecurrentQ,
        seed: int,
        *,
        epsilons: Array | None,  # of every environment of the run; None: greedy
        priorities: PriorityLaw | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(network, seed, device, epsilons, NumpyRecurrentQ if supported(network) else None)
        self._forward = self.mirror or self._by_torch
        self._records = priorities is not None
        if priorities is not None:
            columns = (*VALUES, "state/last_action")
            give_priorities(self, priorities, columns, (*columns, "reward", "terminated", "valid"))

    def initial_state(self, count: int) -> Columns:
        core = {f"core/{name}": np.array(to_array(x)) for name, x in self.network.initial_state(count).items()}
        return core | {"last_action": np.zeros(count, np.int64), LAST_REWARD: np.zeros(count, np.float32)}

    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...] → actions [B], state after, and unless greedy the `VALUES` acted on.

        The state is zero where an episode begins: whoever carries it has seen to that."""
        q, core = self._forward(observation, state["last_action"], state[LAST_REWARD], core_state(state))
        extras = {}
        action = best = q.argmax(-1)
        if self.exploration is not None:
            action = epsilon_greedy(q, self.exploration, self.random)
        if self._records:
            rows = np.arange(len(q))
            extras = {"q": q[rows, action], "value": q[rows, best]}
        after = {f"core/{name}": value for name, value in core.items()}
        return action, after | {"last_action": action + 1, LAST_REWARD: state[LAST_REWARD]}, extras

    @torch.inference_mode()
    def _by_torch(
        self, observation: Any, last_action: Array, last_reward: Array, core: Columns
    ) -> tuple[Array, Columns]:
        arrays = (observation, last_action - 1, last_reward, last_action == 0)
        *rows, first = tree.map(lambda x: x.unsqueeze(0), self.to_device(arrays))
        q, after = self.network(*rows, self.to_device(core), first)
        return to_array(q[0]), {name: to_array(x) for name, x in after.items()}
