"""Acting with a Gaussian that nothing squashes: draws from it, clipped to the bounds, or greedily its mean."""

from __future__ import annotations

from typing import Any

from shoal.acting.deterministic import ControlPolicy
from shoal.acting.policy import Acted, Choice, State
from shoal.functional.arrays import Random, normal
from shoal.nets.control import ValuedNetworks


class PlainGaussianPolicy(ControlPolicy[ValuedNetworks]):
    """Its mean lies within the bounds already."""

    def greedy(self, observation: Any, state: State) -> Choice:
        mean, _ = self.network.actor(self.network.see(observation))
        return self.preferred(mean, state)

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        mean, log_std = self.network.actor(self.network.see(observation))
        drawn = (mean + log_std.exp() * normal(random, mean)).clamp(-1.0, 1.0)
        taken = self.random_actions(drawn, random)
        return self.taken(observation, mean, drawn if taken is None else taken)
