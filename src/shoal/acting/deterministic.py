"""Acting with a deterministic actor: noise by each environment's deviation, and priorities of new items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from shoal import tree
from shoal.acting.network_policy import Exploration, ExploringPolicy, PriorityLaw, priorities_by
from shoal.acting.policy import Acted, Choice, State
from shoal.acting.q import VALUES
from shoal.functional.arrays import Random, uniform
from shoal.functional.exploration import gaussian_noise
from shoal.nets.control import ControlNetworks

Networks = TypeVar("Networks", bound=ControlNetworks)


class ControlPolicy(ExploringPolicy[Networks]):
    """What policies of an actor and a critic share.

    With a law for priorities it records what the critic thinks of the action taken and of the actor's own: with that,
    items of an n-step pattern that follows "value" get their priority by the law that the learner uses.
    """

    def __init__(
        self,
        networks: Networks,
        seed: int,
        *,
        greedy: bool = False,
        priorities: PriorityLaw | None = None,
        random_rows: int = 0,  # of uniform actions, before it acts by its actor
        device: str = "cpu",
        ladder: Exploration | None = None,  # deviations of the environments of a run
    ) -> None:
        law = priorities_by(priorities, VALUES, ("q", "next_value", "reward", "discount"), VALUES)
        super().__init__(networks, seed, greedy=greedy, ladder=ladder, priorities=law, device=device)
        self._random_rows = random_rows

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"random_rows": self._random_rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._random_rows = state["random_rows"]

    def random_actions(self, like: Tensor, random: Random) -> Tensor | None:
        """Uniform ones [B, n] in units, as long as they are asked for."""
        if self._random_rows <= 0:
            return None
        self._random_rows -= 1
        drawn: Tensor = (2.0 * uniform(random, like) - 1.0).float()
        return drawn

    def preferred(self, units: Tensor, state: State) -> Choice:
        return Choice(self.network.actor.units.to_environment(units), units, state)

    def taken(self, observation: Any, preferred: Tensor, taken: Tensor, bonus: Tensor | None = None) -> Acted:
        """Actions as the environment has them, no state, and what to record; `bonus` [B] is added to the value of the
        preferred action."""
        action = self.network.actor.units.to_environment(taken)
        if self.first_priorities is None:
            return action, {}, {}
        both = tree.map(lambda part: torch.cat([part, part]), self.network.see(observation))
        q, value = self.network.critic.expected_return(both, torch.cat([taken, preferred])).chunk(2)
        return action, {}, {"q": q, "value": value if bonus is None else value + bonus}


class DeterministicPolicy(ControlPolicy[ControlNetworks]):
    """Acts as the actor says, or with noise of each environment's own deviation, in units of half the action range."""

    def __init__(
        self,
        networks: ControlNetworks,
        seed: int,
        *,
        noise: Exploration | None,  # deviations of the environments of a run; None: greedy
        priorities: PriorityLaw | None = None,
        random_rows: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            networks,
            seed,
            greedy=noise is None,
            priorities=priorities,
            random_rows=random_rows,
            device=device,
            ladder=noise,
        )

    def greedy(self, observation: Any, state: State) -> Choice:
        return self.preferred(self.network.actor(self.network.see(observation)), state)

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        preferred: Tensor = self.network.actor(self.network.see(observation))
        taken = self.random_actions(preferred, random)
        if taken is None:
            taken = gaussian_noise(preferred, self.explores(preferred), random)
        return self.taken(observation, preferred, taken)
