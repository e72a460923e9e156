"""The user's own network behind `--network module:factory`.

`factory(observation_space, action_space)` returns one of

- a module with `forward(observation) -> (parameters, value)`;
- a recurrent module: it also has `initial_state(count) -> dict of tensors [count, ...]`, its forward is one step in
  time, `forward(observation, state) -> (parameters, value, state)`, and states are zeroed between episodes for it;
- a pair `(policy, value)` of modules, each `forward(observation) -> outputs`, that share nothing. Where actions are
  Discrete the policy may also be `forward(observation, action=None) -> (action, log-probability, entropy)`: it is asked
  about every action in turn.

Observations come as tensors [N, ...] in the dtype of their space (bytes stay bytes), dictionaries or tuples of tensors
for Dict and Tuple spaces. Parameters are [N, n]: logits for Discrete and MultiDiscrete actions (those of all choices
side by side); for Box actions means in units where −1 and 1 are the bounds, or means and then log standard deviations
(2n). Means alone get a learned standard deviation that sees no state. Values are [N] or [N, 1].
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.errors import UserError
from shoal.functional.distributions import DiagonalGaussian
from shoal.nets import user_module
from shoal.nets.actor_critic import State
from shoal.nets.heads import LogStd, action_distribution
from shoal.nets.normalize import ObservationNormalizer


class UserNetwork(nn.Module):
    """Makes the user's module, or pair of modules, a `Network`; its first forward has checked all shapes."""

    def __init__(
        self, made: object, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], name: str
    ) -> None:
        super().__init__()
        self.distribution = action_distribution(action_space)
        self.normalizer: ObservationNormalizer | None = None
        if isinstance(made, nn.Module):
            self.module = made
        elif isinstance(made, (tuple, list)) and len(made) == 2 and all(isinstance(part, nn.Module) for part in made):
            policy, value = made
            if isinstance(action_space, spaces.Discrete) and "action" in inspect.signature(policy.forward).parameters:
                policy = LogProbabilities(policy, int(action_space.n))
            self.module = Pair(policy, value)
        else:
            raise UserError(
                f"The network {name} returned {type(made).__name__}: return an nn.Module, "
                "or a pair of them (policy, value)."
            )
        self.recurrent = hasattr(self.module, "initial_state")
        self.log_std: LogStd | None = None
        self._check(observation_space, name)

    def initial_state(self, count: int) -> State:
        return self.module.initial_state(count) if self.recurrent else {}  # type: ignore[operator]

    def forward(self, observation: Any, state: State, first: Tensor) -> tuple[Tensor, Tensor, State]:
        length, count = first.shape
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        if not self.recurrent:
            parameters, value = self.module(tree.map(lambda x: x.flatten(0, 1), observation))
            parameters, value = parameters.reshape(length, count, -1), value.reshape(length, count)
        else:
            (parameters, value), state = user_module.step_through(self.module, (observation,), state, first)
            value = value.reshape(length, count)
        return (parameters if self.log_std is None else self.log_std(parameters)), value, state

    def _check(self, observation_space: spaces.Space[Any], name: str) -> None:
        """Two zero observations through the module: one sentence when what comes out is of the wrong shape."""
        count = 2
        inputs = (zeros(observation_space, count), *((self.initial_state(count),) if self.recurrent else ()))
        outputs = user_module.attempt(self.module, f"The network {name}", *inputs)
        expected = 3 if self.recurrent else 2
        if not isinstance(outputs, tuple) or len(outputs) != expected:
            what = "(parameters, value, state)" if self.recurrent else "(parameters, value)"
            found = f"{len(outputs)} values" if isinstance(outputs, tuple) else type(outputs).__name__
            raise UserError(f"The network {name} must return {what}, not {found}.")
        for part, output in zip(("policy", "value"), outputs):
            if not isinstance(output, Tensor):
                raise UserError(
                    f"The {part} of the network {name} gave a {type(output).__name__}, not a tensor: return what "
                    "actions are drawn by (logits, or means and log deviations), or the values, and nothing else."
                )
        size = self.distribution.size
        allowed = [size]
        if isinstance(self.distribution, DiagonalGaussian):
            allowed = [size // 2, size]
        parameters, value = outputs[:2]
        shape = tuple(parameters.shape)
        if shape not in [(count, width) for width in allowed]:
            wanted = " or ".join(f"[{count}, {width}]" for width in allowed)
            raise UserError(
                f"The network {name} gave policy outputs of shape {list(shape)} for {count} observations; "
                f"this action space needs {wanted}."
            )
        if tuple(value.shape) not in [(count,), (count, 1)]:
            raise UserError(
                f"The network {name} gave values of shape {list(value.shape)} for {count} observations; "
                f"they must be [{count}] or [{count}, 1]."
            )
        if shape[1] != size:
            self.log_std = LogStd(shape[1])


class Pair(nn.Module):
    """Separate policy and value modules as one."""

    def __init__(self, policy: nn.Module, value: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.value = value

    def forward(self, observation: Any) -> tuple[Tensor, Tensor]:
        return self.policy(observation), self.value(observation)


class LogProbabilities(nn.Module):
    """A policy that answers (action, log-probability, entropy), made one that gives logits: the log-probabilities of
    all actions are such."""

    def __init__(self, policy: nn.Module, actions: int) -> None:
        super().__init__()
        self.policy, self.actions = policy, actions

    def forward(self, observation: Any) -> Tensor:
        leaf: Tensor = tree.leaf(observation)
        none = torch.zeros_like(leaf if leaf.dim() == 1 else leaf.flatten(1)[:, 0], dtype=torch.int64)
        answers = [self.policy(observation, none + action) for action in range(self.actions)]
        for answer in answers:
            if not isinstance(answer, tuple) or len(answer) != 3 or answer[1].numel() != len(none):
                raise TypeError("a policy that takes an action returns (action, log-probability [N], entropy)")
        return torch.stack([log_probability.reshape(len(none)) for _, log_probability, _ in answers], dim=1)


def zeros(space: spaces.Space[Any], count: int) -> Any:
    """`count` observations of zeros (or the lowest number of a discrete part), nested as the space."""
    match space:
        case spaces.Dict():
            return {key: zeros(part, count) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(zeros(part, count) for part in space.spaces)
        case spaces.Discrete() | spaces.MultiDiscrete():
            return torch.from_numpy(np.stack([np.asarray(space.start)] * count))
    assert space.shape is not None
    return torch.from_numpy(np.zeros((count, *space.shape), space.dtype))
