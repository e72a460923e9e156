"""Fitted Q evaluation (Le 2019): what a policy is worth, by networks that learn it from logged data."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.data import Dataset
from shoal.nets.control import ActionUnits, head_mlp
from shoal.nets.encoder import OneHotEncoder, make_encoder
from shoal.nets.normalize import ObservationNormalizer
from shoal.nets.stacks import Stack
from shoal.types import Array, Columns

MEMBERS = 10  # networks, each of another bootstrap of the episodes
T_QUANTILE = 2.262  # of so many, for an interval of 95 %
HIDDEN, BATCH, RATE, TARGET_RATE = (64, 64), 256, 1e-3, 0.05


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


class Member(nn.Module):
    """observation [N, ...], action features [N, n] → values [N]."""

    def __init__(self, space: spaces.Space[Any], actions: int) -> None:
        super().__init__()
        self.encoder = make_encoder(space)
        self.layers = head_mlp(int(self.encoder.size) + actions, HIDDEN, "relu", 1, True)  # type: ignore[arg-type]

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        values: Tensor = self.layers(torch.cat([self.encoder(observation), action], dim=-1))
        return values.squeeze(-1)


class FittedQ:
    """Networks that learn Q of a policy whose actions are known in every row of a dataset.

    Each sees every episode with a weight of its own, drawn from Poisson's law with mean 1: a bootstrap of the episodes,
    in one pass over the data for all networks. Their spread is that of the data and of the learning.
    """

    def __init__(self, data: Dataset, actions: Array, gamma: float, seed: int) -> None:
        self._data, self._gamma = data, gamma
        self._space, self._columns = (
            data.observation_space,
            list(tree.leaf_spaces(data.observation_space, "observation")),
        )
        self._random = np.random.default_rng(seed)
        self._chosen = _features(data.action_space, actions)  # of the policy, [rows, n]
        self._taken = _features(data.action_space, np.asarray(data.rows["action"]))  # of the data
        self._valid = np.flatnonzero(data.rows["valid"])
        self._episode = np.repeat(np.arange(len(data)), data.lengths + 1)
        self._weights = torch.from_numpy(self._random.poisson(1.0, (len(data), MEMBERS)).astype(np.float32))
        rewards = data.rows["reward"][self._valid]
        self._scale = max(float(np.std(rewards)), 1e-6) / (1.0 - min(gamma, 0.99))  # values are then of the size 1
        self._normalizer = ObservationNormalizer(self._space)
        self._normalizer.settle(data.statistics())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._members = nn.ModuleList([Member(self._space, self._chosen.shape[1]) for _ in range(MEMBERS)])
        self._targets = copy.deepcopy(self._members).requires_grad_(False)
        self._optimizer = torch.optim.Adam(self._members.parameters(), RATE)

    def fit(self, updates: int) -> None:
        for _ in range(updates):
            rows = self._valid[self._random.integers(len(self._valid), size=BATCH)]
            with torch.no_grad():
                following = self._values(self._targets, rows + 1, self._chosen)
            discount = torch.from_numpy(
                np.where(self._data.rows["terminated"][rows], 0.0, self._gamma).astype(np.float32)
            )
            reward = torch.from_numpy(self._data.rows["reward"][rows] / np.float32(self._scale))
            errors = reward + discount * following - self._values(self._members, rows, self._taken)
            loss = (self._weights[self._episode[rows]].T * errors.square()).mean(1).sum()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            with torch.no_grad():
                pairs = zip(self._targets.parameters(), self._members.parameters())
                for slow, fast in pairs:
                    slow.lerp_(fast, TARGET_RATE)

    @torch.no_grad()
    def estimate(self) -> Estimate:
        """What the policy earns from the first observations of the data's episodes on, discounted, with 95 %."""
        first = self._data.index["first"]
        values = self._values(self._members, first, self._chosen) * self._scale  # [members, episodes]
        weights = self._weights.T
        means = (values * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        value, spread = float(means.mean()), T_QUANTILE * float(means.std())
        return Estimate(value, value - spread, value + spread)

    def _values(self, members: nn.ModuleList, rows: Array, features: Tensor) -> Tensor:
        """[members, rows]"""
        flat: Columns = {name: np.ascontiguousarray(self._data.rows[name][rows]) for name in self._columns}
        observation = tree.map(torch.from_numpy, tree.nest(self._space, flat, "observation"))
        seen, action = self._normalizer(observation), features[torch.from_numpy(np.array(rows))]
        one = cast(Member, members[0])
        if list(one.encoder.parameters()):
            return torch.stack([member(seen, action) for member in members])
        inputs = torch.cat([one.encoder(seen), action], dim=-1)  # all see the same
        return Stack(*(cast(Member, member).layers for member in members))(inputs).squeeze(-1)


def _features(space: spaces.Space[Any], actions: Array) -> Tensor:
    """Actions [rows, ...] as numbers of the size 1, [rows, n]."""
    tensor = torch.from_numpy(np.ascontiguousarray(actions))
    match space:
        case spaces.Discrete():
            return OneHotEncoder([int(space.n)], [0])(tensor)  # type: ignore[no-any-return]
        case spaces.MultiDiscrete():
            counts = space.nvec.flatten().tolist()
            return OneHotEncoder(counts, [0] * len(counts))(tensor)  # type: ignore[no-any-return]
    return ActionUnits(space).to_units(tensor.float()).clamp(-1.0, 1.0)
