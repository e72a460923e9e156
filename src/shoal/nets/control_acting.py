"""The acting side of deterministic policies: noise by each environment's place, and priorities of new items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal import tree
from shoal.functional.exploration import gaussian_noise
from shoal.functional.n_step import bootstrap
from shoal.nets.building import import_weights, named_tensors
from shoal.nets.control import ControlNetworks

Array = npt.NDArray[Any]
Columns = dict[str, Array]
VALUES = ("q", "value")  # expected returns of the action taken and of the actor's own, [B]


class DeterministicPolicy:
    """Acts as the actor says, or with noise of each environment's own deviation, in units of half the action range."""

    def __init__(
        self,
        networks: ControlNetworks,
        seed: int,
        scales: Array | None = None,  # deviation for every environment of the run; None: greedy
    ) -> None:
        self._networks = networks.eval()
        self._tensors = named_tensors(networks)
        self._random = np.random.default_rng(seed)
        self._scales, self._scale = scales, scales
        units = networks.actor.units
        self._centre, self._half_width = units.centre.numpy(), units.half_width.numpy()
        self._shape = units.shape

    def initial_state(self, count: int) -> Columns:
        return {}

    def place(self, environments: Array) -> None:
        """The rows of the coming calls of `act` are these environments of the run, int [B]."""
        if self._scales is not None:
            self._scale = self._scales[environments]

    def load(self, weights: Mapping[str, Array]) -> None:
        import_weights(self._tensors, weights)

    @torch.inference_mode()
    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...] → actions [B, *shape] as the environment has them, no state, and what to remember."""
        seen = tree.map(torch.from_numpy, observation)
        preferred = self._networks.actor(seen).numpy()
        taken = preferred if self._scale is None else gaussian_noise(preferred, self._scale, self._random)
        action = (self._centre + self._half_width * taken).reshape(-1, *self._shape)
        return action, state, self._remember(seen, preferred, taken)

    def _remember(self, observation: Any, preferred: Array, taken: Array) -> Columns:
        return {}


class ValuingPolicy(DeterministicPolicy):
    """One that keeps what its critic thinks of the actions: with that, items of an n-step pattern that follows "value"
    get the priority that the learner would give them with the same weights."""

    priority_columns = VALUES
    transient = VALUES

    def __init__(
        self, networks: ControlNetworks, seed: int, scales: Array | None = None, *, reward_scale: float = 1.0
    ) -> None:
        super().__init__(networks, seed, scales)
        self._reward_scale = reward_scale

    def priorities(self, data: Columns) -> Array:
        """|TD error| of n-step items [N], as the learner has it where online and target networks are these."""
        q, value, reward, discount = (
            torch.from_numpy(data[name]) for name in ("q", "next_value", "reward", "discount")
        )
        return (bootstrap(reward * self._reward_scale, discount, value) - q).abs().numpy()

    def _remember(self, observation: Any, preferred: Array, taken: Array) -> Columns:
        critic = self._networks.critic
        both = tree.map(lambda part: torch.cat([part, part]), observation)
        values = critic.expected(critic(both, torch.from_numpy(np.concatenate([taken, preferred])))).numpy()
        return dict(zip(VALUES, np.split(values, 2)))
