"""The built-in actor-critic: encoder, MLP torso, optional LSTM, policy and value heads."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.functional.distributions import Distribution
from shoal.nets.dense import mlp
from shoal.nets.encoder import make_encoder
from shoal.nets.heads import PolicyHead, action_distribution, orthogonal
from shoal.nets.normalize import ObservationNormalizer
from shoal.nets.stacks import Stack

State = dict[str, Tensor]  # each [B, ...]; empty for a feed-forward network


class Network(Protocol):
    """What algorithms train: an nn.Module with these two methods, built-in or an adapter of the user's."""

    distribution: Distribution

    def initial_state(self, count: int) -> State: ...
    def forward(self, observation: Any, state: State, first: Tensor) -> tuple[Tensor, Tensor, State]:
        """Time-major: observation [T, B, ...] as its space nests it, state [B, ...] before row 0, first bool [T, B].

        Returns distribution parameters [T, B, size], values [T, B] and the state after row T−1. The state is zeroed
        before every row that is the first of an episode.
        """


class ActorCritic(nn.Module):
    """Policy and value over one torso, or over one each (`shared=False`). With `lstm` they share torso and core."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        hidden: tuple[int, ...] = (64, 64),
        activation: str = "tanh",
        lstm: int = 0,
        shared: bool = True,
        state_dependent_std: bool = False,
        encoder: str = "nature",  # of images
    ) -> None:
        super().__init__()
        self.distribution = action_distribution(action_space)
        self.normalizer: ObservationNormalizer | None = None
        self.encoder = make_encoder(observation_space, encoder)
        size: int = self.encoder.size  # type: ignore[assignment]
        self.torso = mlp(size, hidden, activation)
        self.value_torso = None if shared or lstm else mlp(size, hidden, activation)
        torsos = [self.torso] if self.value_torso is None else [self.torso, self.value_torso]
        self._torsos = Stack(*torsos) if hidden else None
        size = hidden[-1] if hidden else size
        self.core = LSTM(size, lstm) if lstm else None
        size = lstm or size
        self.policy_head = PolicyHead(size, self.distribution, state_dependent_std)
        self.value_head = orthogonal(nn.Linear(size, 1), 1.0)

    def initial_state(self, count: int) -> State:
        return self.core.initial_state(count) if self.core else {}

    def forward(self, observation: Any, state: State, first: Tensor) -> tuple[Tensor, Tensor, State]:
        length, count = first.shape
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        encoded = self.encoder(tree.map(lambda x: x.flatten(0, 1), observation))
        features = encoded if self._torsos is None else self._torsos(encoded)
        for_value = features
        if self._torsos is not None and self.value_torso is not None:
            features, for_value = features.unbind(0)
        if self.core is not None:
            features, state = self.core(features.unflatten(0, (length, count)), state, first)
            for_value = features = features.flatten(0, 1)
        parameters = self.policy_head(features).view(length, count, -1)
        return parameters, self.value_head(for_value).view(length, count), state


class LSTM(nn.Module):
    """A recurrent core: inputs [T, B, size] → outputs [T, B, width].

    Rows between which no state is zeroed are one call, twice as fast as stepping over time.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.LSTMCell(size, width)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.cell.bias_ih[width : 2 * width] = 1.0  # remember by default: gates are input, forget, cell, output

    def initial_state(self, count: int) -> State:
        zeros = torch.zeros(count, self.width, device=self.cell.bias_ih.device)
        return {"hidden": zeros, "cell": zeros}

    def forward(self, inputs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        keep = (~first).to(inputs.dtype).unsqueeze(-1)
        hidden, cell = state["hidden"], state["cell"]
        if len(inputs) > 1 and not first[1:].any():
            before = ((hidden * keep[0]).unsqueeze(0), (cell * keep[0]).unsqueeze(0))
            weights = [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]
            rows, after, cells = torch.lstm(inputs, before, weights, True, 1, 0.0, False, False, False)
            return rows, {"hidden": after[0], "cell": cells[0]}
        outputs = []
        for row, kept in zip(inputs, keep):
            hidden, cell = self.cell(row, (hidden * kept, cell * kept))
            outputs.append(hidden)
        return torch.stack(outputs), {"hidden": hidden, "cell": cell}
