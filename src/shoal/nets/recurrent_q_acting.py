"""The acting side of recurrent Q-learning: ε-greedy, with last action and reward kept in the recurrent state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal import tree
from shoal.functional.exploration import epsilon_greedy
from shoal.nets.building import export_weights, import_weights, named_tensors
from shoal.nets.numpy_recurrent_q import NumpyRecurrentQ, supported
from shoal.nets.q import RecurrentQNetwork
from shoal.nets.user_q import UserRecurrentQ

Array = npt.NDArray[Any]
Columns = dict[str, Array]
VALUES = ("q", "value")  # of the action taken and of the best one: [B]


class RecurrentQPolicy:
    """Acts on a recurrent Q network: greedily, or with a `ladder` of ε over all environments of a run.

    Its state is the network's under "core/…", "last_reward", which who steps the environments fills in, and
    "last_action", counted from 1: 0 says that there was none yet in this episode. It keeps the values it acted on;
    `judge` makes priorities of new items out of them.
    """

    priority_columns = (*VALUES, "state/last_action")
    transient = VALUES

    def __init__(
        self,
        network: RecurrentQNetwork | UserRecurrentQ,
        seed: int,
        judge: Callable[[Columns], Array],  # columns [T, items] of `priority_columns`, reward, … → [items]
        ladder: Array | None = None,  # ε of every environment of the run; None: greedy
    ) -> None:
        self._network = network.eval()
        self._tensors = named_tensors(network)
        self._random = np.random.default_rng(seed)
        self._ladder, self._epsilon = ladder, ladder
        self.priorities = judge
        self._fast = NumpyRecurrentQ(network) if supported(network) else None

    def initial_state(self, count: int) -> Columns:
        core = export_weights(self._network.initial_state(count))
        state = {f"core/{name}": array for name, array in core.items()}
        return state | {"last_action": np.zeros(count, np.int64), "last_reward": np.zeros(count, np.float32)}

    def place(self, environments: Array) -> None:
        """The rows of the coming calls of `act` are these environments of the run, int [B]."""
        if self._ladder is not None:
            self._epsilon = self._ladder[environments]

    def load(self, weights: Mapping[str, Array]) -> None:
        if self._fast is not None:
            self._fast.load(weights)
        else:
            import_weights(self._tensors, weights)

    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...], first bool [B] → actions [B], state after, and unless greedy the `VALUES` acted on."""
        if first.any():
            state = {name: _zero_where(first, value) for name, value in state.items()}
        core = {name.removeprefix("core/"): value for name, value in state.items() if name.startswith("core/")}
        forward = self._forward if self._fast is None else self._fast
        q, core = forward(observation, state["last_action"], state["last_reward"], core)
        extras = {}
        action = best = q.argmax(-1)
        if self._epsilon is not None:
            action = epsilon_greedy(q, self._epsilon, self._random)
            rows = np.arange(len(q))
            extras = {"q": q[rows, action], "value": q[rows, best]}
        after = {f"core/{name}": value for name, value in core.items()}
        return action, after | {"last_action": action + 1, "last_reward": state["last_reward"]}, extras

    @torch.inference_mode()
    def _forward(
        self, observation: Any, last_action: Array, last_reward: Array, core: Columns
    ) -> tuple[Array, Columns]:
        rows = tree.map(_row, observation)
        before = {name: torch.from_numpy(array) for name, array in core.items()}
        q, after = self._network(rows, _row(last_action - 1), _row(last_reward), before, _row(last_action == 0))
        return q[0].numpy(), {name: tensor.numpy() for name, tensor in after.items()}


def _row(array: Array) -> Tensor:
    """As rows [1, B, ...] of time."""
    return torch.from_numpy(array).unsqueeze(0)


def _zero_where(first: Array, value: Array) -> Array:
    return np.where(first.reshape(-1, *[1] * (value.ndim - 1)), np.zeros((), value.dtype), value)
