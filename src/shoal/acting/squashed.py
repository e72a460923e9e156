"""Acting with a squashed Gaussian: draws from it, or greedily its mean."""

from __future__ import annotations

from typing import Any

import torch

from shoal.acting.deterministic import ControlPolicy
from shoal.acting.policy import Acted, Choice, State
from shoal.functional.arrays import Random, normal
from shoal.functional.squashed import squashed_gaussian
from shoal.nets.control import TemperedNetworks


class SquashedGaussianPolicy(ControlPolicy[TemperedNetworks]):
    """The value it records of its own action is the soft one: with the entropy that the temperature adds."""

    def greedy(self, observation: Any, state: State) -> Choice:
        mean, _ = self.network.actor(self.network.see(observation))
        return self.preferred(torch.tanh(mean), state)

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        mean, log_std = self.network.actor(self.network.see(observation))
        drawn, log_prob = squashed_gaussian(mean=mean, log_std=log_std, noise=normal(random, mean))
        taken = self.random_actions(drawn, random)
        bonus = -self.network.log_temperature.exp() * log_prob
        return self.taken(observation, drawn, drawn if taken is None else taken, bonus)
