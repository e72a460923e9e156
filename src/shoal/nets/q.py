"""Q networks: dueling heads on the shared encoder, scalar or with quantiles, feed-forward or recurrent."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.errors import UserError, name_of
from shoal.factories import Factory
from shoal.nets import user_module
from shoal.nets.actor_critic import LSTM, State
from shoal.nets.building import Spaces
from shoal.nets.dense import Dense, mlp
from shoal.nets.encoder import make_encoder
from shoal.nets.heads import orthogonal
from shoal.nets.images import compute_in, precision_of
from shoal.nets.user_q import UserCore, UserRecurrentQ, check_q, history
from shoal.options import DuelingNetwork, RecurrentDuelingNetwork

HEAD_GAIN = 0.1  # values begin near 0, so that the first targets are little more than the rewards


class DuelingHead(nn.Module):
    """[N, inputs] → Q = V + A − mean A (Wang 2016): [N, actions], or [N, actions, quantiles].

    Value and advantages each have a hidden layer of their own when `stream` gives its width.
    """

    def __init__(self, inputs: int, actions: int, *, quantiles: int = 0, stream: int = 0, activation: str) -> None:
        super().__init__()
        self.actions, self.quantiles = actions, quantiles
        self.streams = Dense(inputs, 2 * stream, activation) if stream else None  # both in one product
        self.value = orthogonal(nn.Linear(stream or inputs, quantiles or 1), HEAD_GAIN)
        self.advantage = orthogonal(nn.Linear(stream or inputs, actions * (quantiles or 1)), HEAD_GAIN)

    def forward(self, features: Tensor) -> Tensor:
        if self.streams is None and type(self.value) is type(self.advantage) is nn.Linear:  # not a noisy layer, say
            q = self._folded(features)
        else:
            parts = (features, features) if self.streams is None else self.streams(features).chunk(2, dim=-1)
            for_value, for_advantage = parts
            advantage = self.advantage(for_advantage).unflatten(1, (self.actions, -1))
            q = self.value(for_value).unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
        values: Tensor = q if self.quantiles else q.squeeze(-1)
        return values

    def _folded(self, features: Tensor) -> Tensor:
        """The same where value and advantage see the same features: one layer, of the sum of both layers' weights."""
        atoms = self.quantiles or 1
        weight, bias = self.advantage.weight.view(self.actions, atoms, -1), self.advantage.bias.view(-1, atoms)
        weight = self.value.weight + weight - weight.mean(0)
        bias = self.value.bias + bias - bias.mean(0)
        q = nn.functional.linear(features, weight.flatten(0, 1), bias.flatten())
        return q.view(-1, self.actions, atoms)


class QNetwork(nn.Module):
    """Feed-forward: observation [N, ...] → Q [N, actions], or quantiles [N, actions, quantiles]."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        hidden: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        stream: int = 0,
        quantiles: int = 0,
        encoder: str = "nature",  # of images
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space, encoder)
        size: int = self.encoder.size  # type: ignore[assignment]
        self.torso = mlp(size, hidden, activation)
        size = hidden[-1] if hidden else size
        actions = action_count(action_space)
        self.head = DuelingHead(size, actions, quantiles=quantiles, stream=stream, activation=activation)

    def forward(self, observation: Any) -> Tensor:
        q: Tensor = self.head(self.torso(self.encoder(observation)))
        return q


class RecurrentQNetwork(nn.Module):
    """Encoder, torso, a recurrent core that also receives previous action and reward, dueling head (Kapturowski 2019).

    `core` names a core of the user's as module:factory (see shoal.nets.user_q); else it is an LSTM of width `lstm`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        hidden: tuple[int, ...] = (64,),
        activation: str = "relu",
        lstm: int = 64,
        core: Factory | None = None,
        stream: int = 0,
        quantiles: int = 0,
        encoder: str = "nature",  # of images
    ) -> None:
        super().__init__()
        self.actions = action_count(action_space)
        self.encoder = make_encoder(observation_space, encoder)
        size: int = self.encoder.size  # type: ignore[assignment]
        self.torso = mlp(size, hidden, activation)
        size = (hidden[-1] if hidden else size) + self.actions + 1
        self.core = (
            LSTM(size, lstm) if core is None else UserCore(user_module.make(core, "core", size), size, name_of(core))
        )
        width = self.core.width
        self.head = DuelingHead(width, self.actions, quantiles=quantiles, stream=stream, activation=activation)

    def initial_state(self, count: int) -> State:
        return self.core.initial_state(count)

    def forward(
        self, observation: Any, previous_action: Tensor, previous_reward: Tensor, state: State, first: Tensor
    ) -> tuple[Tensor, State]:
        """Time-major: observation [T, B, ...], the others [T, B], state [B, ...] before row 0.

        Returns Q [T, B, actions] (or with quantiles [T, B, actions, quantiles]) and the state after row T−1. State,
        previous action and previous reward count as 0 on every row that is the first of an episode.
        """
        features = self.torso(self.encoder(tree.map(lambda x: x.flatten(0, 1), observation)))
        before, reward = history(previous_action, previous_reward, first, self.actions)
        inputs = torch.cat([features.unflatten(0, first.shape), before, reward.unsqueeze(-1)], dim=-1)
        outputs, state = self.core(inputs, state, first)
        return self.head(outputs.flatten(0, 1)).unflatten(0, first.shape), state


def previous(column: Tensor, before: Tensor) -> Tensor:
    """Each row's previous action or reward: column [T, B] one row later, row 0 from `before` [B] → [T, B]."""
    return torch.cat([before.unsqueeze(0).to(column.dtype), column[:-1]])


def unroll(network: nn.Module, inputs: tuple[Any, ...], state: State, first: Tensor, burn_in: int) -> Tensor:
    """Q of all rows, whose gradient does not reach back into the first `burn_in` rows.

    `inputs` are a recurrent network's first three. In columns that begin an episode with row 0, whose state is known,
    there is no burn-in and gradients reach back to row 0.
    """
    if not burn_in:
        q: Tensor = network(*inputs, state, first)[0]
        return q
    begins = first[0]
    with torch.set_grad_enabled(torch.is_grad_enabled() and bool(begins.any())):
        before, state = network(*tree.map(lambda x: x[:burn_in], inputs), state, first[:burn_in])
    state = {name: torch.where(begins.view(-1, *[1] * (x.dim() - 1)), x, x.detach()) for name, x in state.items()}
    after, _ = network(*tree.map(lambda x: x[burn_in:], inputs), state, first[burn_in:])
    return torch.cat([before, after])


def action_count(space: spaces.Space[Any]) -> int:
    """How many actions there are to give a value to."""
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"Q-learning needs a Discrete action space, not {space}.")
    return int(space.n)


def make_q_network(cfg: DuelingNetwork, env: Spaces, seed: int, quantiles: int = 0) -> nn.Module:
    """The user's module when the config names one as module:factory, else a `QNetwork`: called the same way.

    Initial weights depend on the seed alone; the global random state is left as it was.
    """
    actions = action_count(env.action_space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cfg.network is not None:
            made = user_module.make(cfg.network, "network", env.observation_space, env.action_space)
            return check_q(made, env.observation_space, actions, quantiles, name_of(cfg.network))
        network = QNetwork(
            env.observation_space,
            env.action_space,
            hidden=cfg.hidden,
            activation=cfg.activation,
            stream=cfg.stream,
            quantiles=quantiles,
            encoder=cfg.encoder,
        )
    return compute_in(network, precision_of(cfg))


def make_recurrent_q_network(
    cfg: RecurrentDuelingNetwork, env: Spaces, seed: int
) -> RecurrentQNetwork | UserRecurrentQ:
    """The same for recurrent networks."""
    actions = action_count(env.action_space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cfg.network is not None:
            made = user_module.make(cfg.network, "network", env.observation_space, env.action_space)
            return UserRecurrentQ(made, env.observation_space, actions, 0, name_of(cfg.network))
        network = RecurrentQNetwork(
            env.observation_space,
            env.action_space,
            hidden=cfg.hidden,
            activation=cfg.activation,
            lstm=cfg.lstm,
            core=cfg.core,
            stream=cfg.stream,
            encoder=cfg.encoder,
        )
    return compute_in(network, precision_of(cfg))
