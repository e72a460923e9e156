"""Acting with a deterministic actor: noise by each environment's deviation, and priorities of new items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import tree
from shoal.acting.network_policy import ExploringPolicy, to_array
from shoal.acting.q import VALUES, PriorityLaw, give_priorities
from shoal.functional.exploration import gaussian_noise
from shoal.nets.control import ControlNetworks
from shoal.types import Array, Columns


class ControlPolicy(ExploringPolicy[ControlNetworks]):
    """What policies of an actor and a critic share.

    With a law for priorities it records what the critic thinks of the action taken and of the actor's own: with that,
    items of an n-step pattern that follows "value" get their priority by the law that the learner uses.
    """

    def __init__(
        self,
        networks: ControlNetworks,
        seed: int,
        device: str,
        exploration: Array | None,
        priorities: PriorityLaw | None,
        random_rows: int,  # of uniform actions, before it acts by its actor
    ) -> None:
        super().__init__(networks, seed, device, exploration)
        self._random_rows = random_rows
        self._records = priorities is not None
        if priorities is not None:
            give_priorities(self, priorities, VALUES, ("q", "next_value", "reward", "discount"))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"random_rows": self._random_rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._random_rows = state["random_rows"]

    def random_actions(self, like: Tensor) -> Tensor | None:
        """Uniform ones [B, n] in units, as long as they are asked for."""
        if self._random_rows <= 0 or self.exploration is None:
            return None
        self._random_rows -= 1
        return self.to_device(self.random.uniform(-1.0, 1.0, tuple(like.shape)).astype(np.float32))  # type: ignore[no-any-return]

    def answer(self, observation: Any, preferred: Tensor, taken: Tensor, bonus: Tensor | None = None) -> Any:
        """Actions as the environment has them, no state, and what to record; `bonus` [B] is added to the value of the
        preferred action."""
        action = to_array(self.network.actor.units.to_environment(taken))
        if not self._records:
            return action, {}, {}
        both = tree.map(lambda part: torch.cat([part, part]), observation)
        q, value = self.network.critic.expected_return(both, torch.cat([taken, preferred])).chunk(2)
        return action, {}, {"q": to_array(q), "value": to_array(value if bonus is None else value + bonus)}


class DeterministicPolicy(ControlPolicy):
    """Acts as the actor says, or with noise of each environment's own deviation, in units of half the action range."""

    def __init__(
        self,
        networks: ControlNetworks,
        seed: int,
        *,
        noise: Array | None,  # deviation for every environment of the run; None: greedy
        priorities: PriorityLaw | None = None,
        random_rows: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(networks, seed, device, noise, priorities, random_rows)

    @torch.inference_mode()
    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...] → actions [B, *shape] as the environment has them, no state, and what to record."""
        seen = self.to_device(observation)
        preferred: Tensor = self.network.actor(seen)
        taken = self.random_actions(preferred)
        if taken is None:
            taken = preferred if self.exploration is None else self._noisy(preferred, self.exploration)
        return self.answer(seen, preferred, taken)  # type: ignore[no-any-return]

    def _noisy(self, preferred: Tensor, deviation: Array) -> Tensor:
        return self.to_device(gaussian_noise(to_array(preferred), deviation, self.random))  # type: ignore[no-any-return]
