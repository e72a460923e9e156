"""Acting with a squashed Gaussian: draws from it, or greedily its mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal.acting.deterministic import ControlPolicy
from shoal.acting.q import PriorityLaw
from shoal.functional.squashed import squashed_gaussian
from shoal.nets.control import TemperedNetworks
from shoal.types import Array, Columns

EXPLORING = np.zeros(0)  # draws are the exploration: no environment has a number of its own


class SquashedGaussianPolicy(ControlPolicy):
    """The value it records of its own action is the soft one: with the entropy that the temperature adds."""

    network: TemperedNetworks

    def __init__(
        self,
        networks: TemperedNetworks,
        seed: int,
        *,
        greedy: bool = False,
        priorities: PriorityLaw | None = None,
        random_rows: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(networks, seed, device, None if greedy else EXPLORING, priorities, random_rows)

    def set_environments(self, environments: Array) -> None:
        """All explore alike."""

    @torch.inference_mode()
    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...] → actions [B, *shape] as the environment has them, no state, and what to record."""
        seen = self.to_device(observation)
        mean, log_std = self.network.actor(seen)
        if self.exploration is None:
            return self.answer(seen, torch.tanh(mean), torch.tanh(mean))  # type: ignore[no-any-return]
        noise = self.to_device(self.random.standard_normal(tuple(mean.shape), dtype=np.float32))
        drawn, log_prob = squashed_gaussian(mean, log_std, noise)
        taken = self.random_actions(drawn)
        bonus = -self.network.log_temperature.exp() * log_prob
        return self.answer(seen, drawn, drawn if taken is None else taken, bonus)  # type: ignore[no-any-return]
