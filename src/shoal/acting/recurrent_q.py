"""Acting with a recurrent Q network: ε-greedy, with last action and reward kept in the recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal import tree
from shoal.acting.network_policy import Exploration, ExploringPolicy, PriorityLaw, priorities_by, to_array
from shoal.acting.numpy_recurrent_q import NumpyRecurrentQ, supported
from shoal.acting.policy import LAST_REWARD, Acted, Choice, State
from shoal.acting.q import VALUES
from shoal.functional.arrays import Random, pick
from shoal.functional.exploration import epsilon_greedy
from shoal.nets.q import RecurrentQNetwork
from shoal.nets.user_q import UserRecurrentQ
from shoal.types import Values


def core_state(state: Mapping[str, Values]) -> State:
    """The network's own part of a policy's state."""
    return {name.removeprefix("core/"): values for name, values in state.items() if name.startswith("core/")}


class RecurrentQPolicy(ExploringPolicy[RecurrentQNetwork | UserRecurrentQ]):
    """Acts greedily, or with an ε for each environment of a run.

    Its state is the network's under "core/…" (`core_state`), `LAST_REWARD`, which who steps the environments fills in,
    and "last_action", counted from 1: 0 says that there was none yet in this episode. With a law for priorities it
    records the `VALUES` it acted on.
    """

    def __init__(
        self,
        network: RecurrentQNetwork | UserRecurrentQ,
        seed: int,
        *,
        epsilons: Exploration | None,  # of the environments of a run; None: greedy
        priorities: PriorityLaw | None = None,
        device: str = "cpu",
    ) -> None:
        columns = (*VALUES, "state/last_action")
        super().__init__(
            network,
            seed,
            greedy=epsilons is None,
            ladder=epsilons,
            priorities=priorities_by(priorities, columns, (*columns, "reward", "terminated", "valid"), VALUES),
            device=device,
            mirror=NumpyRecurrentQ if supported(network) else None,
        )

    def initial_state(self, count: int) -> State:
        core = {f"core/{name}": np.array(to_array(x)) for name, x in self.network.initial_state(count).items()}
        return core | {"last_action": np.zeros(count, np.int64), LAST_REWARD: np.zeros(count, np.float32)}

    def greedy(self, observation: Any, state: State) -> Choice:
        q, core = self._outputs(observation, state)
        best = q.argmax(-1)
        return Choice(best, q, self._after(core, best, state))

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        q, core = self._outputs(observation, state)
        action = epsilon_greedy(q, self.explores(q), random)
        extras = {}
        if self.first_priorities is not None:
            extras = {"q": pick(q, action), "value": pick(q, q.argmax(-1))}
        return action, self._after(core, action, state), extras

    @staticmethod
    def _after(core: State, action: Values, before: State) -> State:
        """The state after a row; the last reward is still the one before, until who steps the environments tells it."""
        own = {f"core/{name}": value for name, value in core.items()}
        return own | {"last_action": action + 1, LAST_REWARD: before[LAST_REWARD]}

    def _outputs(self, observation: Any, state: State) -> tuple[Values, State]:
        """Q [B, actions] and the network's own state after this row."""
        last_action, last_reward, core = state["last_action"], state[LAST_REWARD], core_state(state)
        if isinstance(observation, np.ndarray):
            return self.mirror(observation, last_action, last_reward, core)  # type: ignore[no-any-return]
        inputs = (observation, last_action - 1, last_reward, last_action == 0)
        *rows, first = tree.map(lambda x: x.unsqueeze(0), inputs)
        q, after = self.network(*rows, core, first)
        return q[0], after
