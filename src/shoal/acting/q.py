"""Acting with a feed-forward Q network: ε-greedy by each environment's ε, and priorities of new items."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from shoal.acting.network_policy import Exploration, ExploringPolicy, PriorityLaw, priorities_by
from shoal.acting.numpy_q import NumpyQ, supported
from shoal.acting.policy import Acted, Choice, State
from shoal.functional.arrays import Random, pick
from shoal.functional.exploration import epsilon_greedy
from shoal.types import Values

VALUES = ("q", "value")  # of the action taken and of the best one: [B], or their quantiles [B, K]


class QPolicy(ExploringPolicy[nn.Module]):
    """Acts greedily, or with an ε for each environment of a run.

    With a law for priorities it records the `VALUES` it acted on: with them, items of an n-step pattern that follows
    "value" get their priority by the law that the learner uses.
    """

    def __init__(
        self,
        network: nn.Module,
        seed: int,
        *,
        epsilons: Exploration | None,  # of the environments of a run; None: greedy
        priorities: PriorityLaw | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            network,
            seed,
            greedy=epsilons is None,
            ladder=epsilons,
            priorities=priorities_by(priorities, VALUES, ("q", "next_value", "reward", "discount"), VALUES),
            device=device,
            mirror=NumpyQ if supported(network) else None,
        )

    def values(self, outputs: Values) -> Values:
        """What actions are worth, [B, actions], of what the network gave: of quantiles [B, actions, K] their mean."""
        return outputs.mean(-1) if outputs.ndim == 3 else outputs

    def greedy(self, observation: Any, state: State) -> Choice:
        values = self.values(self._outputs(observation))
        return Choice(values.argmax(-1), values, state)

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        outputs = self._outputs(observation)
        values = self.values(outputs)
        action = epsilon_greedy(values, self.explores(values), random)
        if self.first_priorities is None:
            return action, state, {}
        return action, state, {"q": pick(outputs, action), "value": pick(outputs, values.argmax(-1))}

    def _outputs(self, observation: Any) -> Values:
        return (self.mirror if isinstance(observation, np.ndarray) else self.network)(observation)
