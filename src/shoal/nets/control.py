"""Networks for continuous control: a deterministic actor, and critics of observation and action.

Both work with actions in units in which the bounds are −1 and 1; `ActionUnits` translates at the edge. So the clipping
of dQ/da and the scale of exploration noise mean the same in every environment.

The user's own networks (`--network module:factory`): `factory(observation_space, action_space)` returns a pair of
modules, `actor(observation) -> [N, n]`, which is squashed by tanh here, and `critic(observation, action [N, n])` ->
[N] or [N, 1] values, [N, atoms] logits or [N, atoms] quantiles, as the kind of critic asks for.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.factories import load_factory
from shoal.functional.distributional import categorical_mean
from shoal.nets.dense import NormalisedDense, mlp
from shoal.nets.encoder import make_encoder
from shoal.nets.heads import orthogonal
from shoal.nets.user import zeros

Kind = Literal["scalar", "categorical", "quantile"]
HEAD_GAIN = 0.01  # actions begin in the middle of their bounds, values near 0


class ActionUnits(nn.Module):
    """Actions as the environment has them, [N, *shape], and in units in which the bounds are −1 and 1, [N, n]."""

    centre: Tensor
    half_width: Tensor

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise UserError(f"A deterministic policy needs a Box of floats as action space, not {space}.")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all() and (space.high > space.low).all()):
            raise UserError(f"A deterministic policy needs finite bounds for every action; {space} has not.")
        low, high = (torch.from_numpy(bound.flatten()).double() for bound in (space.low, space.high))
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.register_buffer("centre", ((low + high) / 2.0).float(), persistent=False)
        self.register_buffer("half_width", ((high - low) / 2.0).float(), persistent=False)

    def to_units(self, action: Tensor) -> Tensor:
        return (action.reshape(len(action), self.size) - self.centre) / self.half_width

    def to_environment(self, units: Tensor) -> Tensor:
        return (self.centre + self.half_width * units).view(-1, *self.shape)


class Actor(nn.Module):
    """observation [N, ...] → actions [N, n] within −1 and 1: tanh of what `body` gives."""

    def __init__(self, body: nn.Module, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.body = body
        self.units = ActionUnits(action_space)

    def forward(self, observation: Any) -> Tensor:
        return torch.tanh(self.raw(observation))

    def raw(self, observation: Any) -> Tensor:
        """What tanh makes actions of."""
        outputs: Tensor = self.body(observation)
        return outputs


class Critic(nn.Module):
    """observation [N, ...], action [N, n] in units → values [N], or [N, atoms] logits or quantiles.

    A categorical critic's support is a buffer: published, saved and copied with the weights.
    """

    support: Tensor

    def __init__(self, body: nn.Module, kind: Kind, atoms: int = 51) -> None:
        super().__init__()
        self.body = body
        self.kind: Kind = kind
        if kind == "categorical":
            self.register_buffer("support", torch.linspace(-1.0, 1.0, atoms))

    def set_support(self, low: float, high: float) -> None:
        """Evenly spaced returns from `low` to `high`, in place."""
        if not low < high:
            raise UserError(f"--support-low {low:g} must lie below --support-high {high:g}: give them in this order.")
        self.support.copy_(torch.linspace(low, high, len(self.support)))

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        outputs: Tensor = self.body(observation, action)
        return outputs.reshape(len(action)) if self.kind == "scalar" else outputs

    def expected(self, outputs: Tensor) -> Tensor:
        """The expected return of what forward gave, [N]."""
        if self.kind == "scalar":
            return outputs
        return categorical_mean(outputs, self.support) if self.kind == "categorical" else outputs.mean(-1)


class SupportWatch:
    """Notices when the targets of a categorical critic keep leaving its support."""

    PERIOD = 200  # updates over which is averaged
    MOST = 0.05  # of the targets' mass may lie outside: tails do, and all of it is spread out in the beginning

    def __init__(self, critic: Critic) -> None:
        self._support = critic.support
        self._sum: Tensor | float = 0.0
        self._updates = 0
        self._told = False

    def __call__(self, outside: Tensor) -> str | None:
        """Take in the mass outside of an update's targets, 0-d; once, when it is too much, a sentence for the user."""
        self._sum = self._sum + outside
        self._updates += 1
        if self._updates % self.PERIOD:
            return None
        mean, self._sum = float(self._sum) / self.PERIOD, 0.0
        if self._told or self._updates == self.PERIOD or mean <= self.MOST:  # not in the beginning
            return None
        self._told = True
        low, high = float(self._support[0]), float(self._support[-1])
        return (
            f"The returns that are learned lie outside of the critic's support, {low:g} to {high:g} ({mean:.0%} of the "
            "targets' mass did): give wider limits with --support-low and --support-high, a smaller --reward-scale, or "
            "--critic quantile, which has none."
        )


class ControlNetworks(nn.Module):
    """An actor and its critic as one module: trained apart, published and copied together."""

    def __init__(self, actor: Actor, critic: Critic) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic


class ActorBody(nn.Module):
    """Encoder and an MLP with layer normalisation: observation [N, ...] → [N, outputs]."""

    def __init__(
        self, observation_space: spaces.Space[Any], outputs: int, hidden: tuple[int, ...], activation: str
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space)
        self.layers = normalised_mlp(cast(int, self.encoder.size), hidden, activation, outputs)

    def forward(self, observation: Any) -> Tensor:
        outputs: Tensor = self.layers(self.encoder(observation))
        return outputs


class CriticBody(nn.Module):
    """The same of observation and action: [N, ...], [N, n] → [N, outputs]."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        actions: int,
        outputs: int,
        hidden: tuple[int, ...],
        activation: str,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space)
        self.layers = normalised_mlp(cast(int, self.encoder.size) + actions, hidden, activation, outputs)

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        outputs: Tensor = self.layers(torch.cat([self.encoder(observation), action], dim=-1))
        return outputs


def normalised_mlp(inputs: int, hidden: tuple[int, ...], activation: str, outputs: int) -> nn.Sequential:
    """An MLP whose first layer is followed by layer normalisation and tanh, as in D4PG's public versions."""
    layers: list[nn.Module] = []
    if hidden:
        layers = [NormalisedDense(inputs, hidden[0]), *mlp(hidden[0], hidden[1:], activation)]
        inputs = hidden[-1]
    return nn.Sequential(*layers, orthogonal(nn.Linear(inputs, outputs), HEAD_GAIN))


def make_control_networks(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    seed: int,
    network: str | None = None,
    critic: Kind = "scalar",
    atoms: int = 51,
    actor_hidden: tuple[int, ...] = (300, 200),
    critic_hidden: tuple[int, ...] = (400, 300),
    activation: str = "relu",
) -> tuple[Actor, Critic]:
    """Actor and critic, of the user's modules when `network` names a factory as module:factory.

    Initial weights depend on the seed alone; the global random state is left as it was.
    """
    if critic not in ("scalar", "categorical", "quantile"):
        raise UserError(f"There is no critic {critic!r}: choose scalar, categorical or quantile.")
    size = ActionUnits(action_space).size
    outputs = 1 if critic == "scalar" else atoms
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if network is not None:
            made = load_factory(network)(observation_space, action_space)
            bodies = _check_pair(made, observation_space, size, outputs, network)
        else:
            bodies = (
                ActorBody(observation_space, size, actor_hidden, activation),
                CriticBody(observation_space, size, outputs, critic_hidden, activation),
            )
    return Actor(bodies[0], action_space), Critic(bodies[1], critic, atoms)


def _check_pair(
    made: object, observation_space: spaces.Space[Any], actions: int, outputs: int, name: str
) -> tuple[nn.Module, nn.Module]:
    """The user's modules, tried on two observations of zeros."""
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and all(isinstance(part, nn.Module) for part in made)):
        raise UserError(f"The network {name} must return a pair of nn.Modules (actor, critic).")
    actor, critic = made
    count = 2
    observation = zeros(observation_space, count)
    with torch.no_grad():
        units, values = actor(observation), critic(observation, torch.zeros(count, actions))
    if list(units.shape) != [count, actions]:
        raise UserError(
            f"The actor of {name} gave actions of shape {list(units.shape)} for {count} observations; "
            f"this action space needs {[count, actions]}."
        )
    if list(values.shape) != [count, outputs] and not (outputs == 1 and list(values.shape) == [count]):
        raise UserError(
            f"The critic of {name} gave outputs of shape {list(values.shape)} for {count} observations; "
            f"this kind of critic needs {[count, outputs]}."
        )
    return actor, critic
