"""The acting side of Q-learning: ε-greedy by each environment's place in the ladder, and priorities of new items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shoal import tree
from shoal.functional.distributional import quantile_priorities
from shoal.functional.exploration import epsilon_greedy
from shoal.functional.n_step import bootstrap
from shoal.nets.building import import_weights, named_tensors
from shoal.nets.numpy_q import NumpyQ, supported

Array = npt.NDArray[Any]
Columns = dict[str, Array]
VALUES = ("q", "value")  # of the action taken and of the best one: [B], or their quantiles [B, K]


class QPolicy:
    """Acts on a feed-forward Q network: greedily, or with a `ladder` of ε over all environments of a run.

    It keeps the values it acted on: with them, items of an n-step pattern that follows "value" get the priority that
    the learner would give them with the same weights.
    """

    priority_columns = VALUES
    transient = VALUES

    def __init__(
        self,
        network: nn.Module,
        seed: int,
        ladder: Array | None = None,  # ε of every environment of the run; None: greedy
        *,
        quantiles: int = 0,
        reward_scale: float = 1.0,
    ) -> None:
        self._network = network.eval()
        self._tensors = named_tensors(network)
        self._random = np.random.default_rng(seed)
        self._ladder, self._epsilon = ladder, ladder
        self._quantiles, self._reward_scale = quantiles, reward_scale
        self._fast = NumpyQ(network) if supported(network) else None

    def initial_state(self, count: int) -> Columns:
        return {}

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
        """observation [B, ...] → actions [B], no state, and unless greedy the `VALUES` acted on."""
        q = self._forward(observation) if self._fast is None else self._fast(observation)
        expected = q.mean(-1) if self._quantiles else q
        if self._epsilon is None:
            return expected.argmax(-1), state, {}
        action, best = epsilon_greedy(expected, self._epsilon, self._random), expected.argmax(-1)
        rows = np.arange(len(q))
        return action, state, {"q": q[rows, action], "value": q[rows, best]}

    def priorities(self, data: Columns) -> Array:
        """|TD error| of n-step items [N], as the learner has it where online and target network are this one."""
        q, value, reward, discount = (
            torch.from_numpy(data[name]) for name in ("q", "next_value", "reward", "discount")
        )
        targets = bootstrap(reward * self._reward_scale, discount, value)
        sizes: Tensor = quantile_priorities(q, targets) if self._quantiles else (targets - q).abs()
        return sizes.numpy()

    @torch.inference_mode()
    def _forward(self, observation: Any) -> Array:
        q: Tensor = self._network(tree.map(torch.from_numpy, observation))
        return q.numpy()
