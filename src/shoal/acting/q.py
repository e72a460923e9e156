"""Acting with a feed-forward Q network: ε-greedy by each environment's ε, and priorities of new items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.acting.network_policy import ExploringPolicy, to_array
from shoal.acting.numpy_q import NumpyQ, supported
from shoal.functional.exploration import epsilon_greedy
from shoal.types import Array, Columns

VALUES = ("q", "value")  # of the action taken and of the best one: [B], or their quantiles [B, K]
PriorityLaw = Callable[[Mapping[str, Tensor]], Tensor]  # columns of items, with q and next_value → [items]


class QPolicy(ExploringPolicy[nn.Module]):
    """Acts greedily, or with an ε for each environment of a run.

    With a law for priorities it records the values it acted on: with them, items of an n-step pattern that follows
    "value" get their priority by the law that the learner uses.
    """

    def __init__(
        self,
        network: nn.Module,
        seed: int,
        *,
        epsilons: Array | None,  # of every environment of the run; None: greedy
        priorities: PriorityLaw | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(network, seed, device, epsilons, NumpyQ if supported(network) else None)
        self._forward = self.mirror or self._by_torch
        self._records = priorities is not None
        if priorities is not None:
            give_priorities(self, priorities, VALUES, ("q", "next_value", "reward", "discount"))

    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...] → actions [B], no state, and unless greedy the `VALUES` acted on."""
        q = self._forward(observation)
        expected = q.mean(-1) if q.ndim == 3 else q  # of quantiles
        if self.exploration is None:
            return expected.argmax(-1), state, {}
        action, best = epsilon_greedy(expected, self.exploration, self.random), expected.argmax(-1)
        if not self._records:
            return action, state, {}
        rows = np.arange(len(q))
        return action, state, {"q": q[rows, action], "value": q[rows, best]}

    @torch.inference_mode()
    def _by_torch(self, observation: Any) -> Array:
        return to_array(self.network(self.to_device(observation)))


def give_priorities(policy: Any, law: PriorityLaw, columns: tuple[str, ...], reads: tuple[str, ...]) -> None:
    """Make a policy one that gives priorities (`GivesPriorities`): by a law, which reads these columns of new items."""
    policy.priority_columns, policy.transient = columns, VALUES
    policy.priorities = lambda data: law({name: torch.from_numpy(data[name]) for name in reads}).numpy()
