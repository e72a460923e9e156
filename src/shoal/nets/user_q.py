"""The user's own Q network behind `--network module:factory`, and own recurrent core behind `--core module:factory`.

A network's `factory(observation_space, action_space)` returns

- a module with `forward(observation) -> q`; or, for recurrent agents,
- a module with `initial_state(count) -> dict of tensors [count, ...]` whose forward is one step in time,
  `forward(observation, previous_action, previous_reward, state) -> (q, state)`. Previous actions come as one-hot
  vectors [N, actions], previous rewards as [N]; both and the state are zeroed between episodes for it.

Observations come as for `shoal.nets.user`. q is [N, actions], or with quantiles [N, actions, quantiles].

A core's `factory(inputs)` returns a module with `initial_state(count)` as above and one step in time as its forward,
`forward(x [N, inputs], state) -> (outputs [N, width], state)`.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.nets import user_module
from shoal.nets.actor_critic import State
from shoal.nets.user import zeros

COUNT = 2  # observations with which a network is tried


def check_q(made: object, observation_space: spaces.Space[Any], actions: int, quantiles: int, name: str) -> nn.Module:
    """The user's feed-forward module, tried on two observations of zeros."""
    module = _module(made, name)
    if hasattr(module, "initial_state"):
        raise UserError(
            f"The network {name} is recurrent: this algorithm needs a feed-forward one (r2d2 is for those)."
        )
    q = user_module.attempt(module, f"The network {name}", zeros(observation_space, COUNT))
    _check_shape(q, actions, quantiles, name)
    return module


class UserRecurrentQ(nn.Module):
    """Steps the user's recurrent module through time; called as a `RecurrentQNetwork`."""

    def __init__(
        self, made: object, observation_space: spaces.Space[Any], actions: int, quantiles: int, name: str
    ) -> None:
        super().__init__()
        self.module = _recurrent(made, "network", name)
        self.actions = actions
        inputs = zeros(observation_space, COUNT), torch.zeros(COUNT, actions), torch.zeros(COUNT)
        outputs = user_module.attempt(self.module, f"The network {name}", *inputs, self.initial_state(COUNT))
        q = _outputs(outputs, "network", "(q, state)", name)
        _check_shape(q, actions, quantiles, name)

    def initial_state(self, count: int) -> State:
        return self.module.initial_state(count)  # type: ignore[operator, no-any-return]

    def forward(
        self, observation: Any, previous_action: Tensor, previous_reward: Tensor, state: State, first: Tensor
    ) -> tuple[Tensor, State]:
        before, reward = history(previous_action, previous_reward, first, self.actions)
        (q,), state = user_module.step_through(self.module, (observation, before, reward), state, first)
        return q, state


class UserCore(nn.Module):
    """Steps the user's recurrent core through time: inputs [T, B, size] → outputs [T, B, width]."""

    def __init__(self, made: object, inputs: int, name: str) -> None:
        super().__init__()
        self.module = _recurrent(made, "core", name)
        outputs = user_module.attempt(
            self.module, f"The core {name}", torch.zeros(COUNT, inputs), self.initial_state(COUNT)
        )
        output = _outputs(outputs, "core", "(outputs, state)", name)
        if output.dim() != 2 or len(output) != COUNT:
            raise UserError(
                f"The core {name} gave outputs of shape {list(output.shape)} for {COUNT} inputs; "
                f"they must be [{COUNT}, width]."
            )
        self.width = int(output.shape[1])

    def initial_state(self, count: int) -> State:
        return self.module.initial_state(count)  # type: ignore[operator, no-any-return]

    def forward(self, inputs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        (outputs,), state = user_module.step_through(self.module, (inputs,), state, first)
        return outputs, state


def history(previous_action: Tensor, previous_reward: Tensor, first: Tensor, actions: int) -> tuple[Tensor, Tensor]:
    """One-hot previous actions [T, B, actions] and previous rewards [T, B], both 0 where an episode begins."""
    going_on = ~first
    index = torch.where(going_on, previous_action.long(), 0).unsqueeze(-1)
    one_hot = torch.zeros(*first.shape, actions, device=first.device)
    one_hot.scatter_(-1, index, going_on.unsqueeze(-1).to(one_hot.dtype))
    return one_hot, torch.where(going_on, previous_reward.float(), 0.0)


def _module(made: object, name: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise UserError(f"The network {name} returned {type(made).__name__}: return an nn.Module.")
    return made


def _recurrent(made: object, kind: str, name: str) -> nn.Module:
    if not isinstance(made, nn.Module) or not hasattr(made, "initial_state"):
        raise UserError(f"The {kind} {name} must be an nn.Module with a method initial_state(count).")
    return made


def _outputs(outputs: object, kind: str, expected: str, name: str) -> Tensor:
    if not isinstance(outputs, tuple) or len(outputs) != 2 or not isinstance(outputs[0], Tensor):
        raise UserError(f"The {kind} {name} must return {expected}, not {type(outputs).__name__}.")
    return outputs[0]


def _check_shape(q: object, actions: int, quantiles: int, name: str) -> None:
    wanted = [COUNT, actions, quantiles] if quantiles else [COUNT, actions]
    found = list(q.shape) if isinstance(q, Tensor) else type(q).__name__
    if found != wanted:
        raise UserError(f"The network {name} gave {found} for {COUNT} observations; Q must be of shape {wanted}.")
