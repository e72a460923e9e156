"""Networks for continuous control: actors, deterministic or Gaussian, and critics of observation and action.

All work with actions in units in which the bounds are −1 and 1; `ActionUnits` translates at the edge. So the clipping
of dQ/da and the scale of exploration noise mean the same in every environment.

The user's own networks (`--network module:factory`): `factory(observation_space, action_space)` returns a pair of
modules, `actor(observation) -> [N, n]`, which is squashed by tanh here ([N, 2n] means and log deviations where the
actor is Gaussian), and `critic(observation, action [N, n])` -> [N] or [N, 1] values, [N, atoms] logits or [N, atoms]
quantiles, as the kind of critic asks for. Where there are two critics the factory is called twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import UserError, name_of
from shoal.factories import Factory
from shoal.functional.distributional import categorical_mean
from shoal.nets import user_module
from shoal.nets.building import Spaces
from shoal.nets.dense import NormalisedDense, mlp
from shoal.nets.encoder import make_encoder
from shoal.nets.heads import LOG_STD_RANGE, LogStd, orthogonal
from shoal.nets.images import compute_in, precision_of
from shoal.nets.normalize import ObservationNormalizer
from shoal.nets.stacks import Stack
from shoal.nets.user import zeros
from shoal.options import ActorAndCritics, NormalizedObservations

CriticKind = Literal["scalar", "categorical", "quantile"]
HEAD_GAIN = 0.01  # actions begin in the middle of their bounds, values near 0


class ActionUnits(nn.Module):
    """Actions as the environment has them, [N, *shape], and in units in which the bounds are −1 and 1, [N, n]."""

    centre: Tensor
    half_width: Tensor

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise UserError(
                f"The action space must be a Box of floats, not {space}: take an algorithm for such actions, such as "
                "impala, ppo, apex_dqn or r2d2, and for logged data bc or discrete_cql."
            )
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all() and (space.high > space.low).all()):
            raise UserError(f"Every action needs finite bounds, and {space} has not.")
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


class GaussianActor(nn.Module):
    """observation [N, ...] → means and log standard deviations [N, n] of what tanh makes actions of."""

    def __init__(self, body: nn.Module, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.body = body
        self.units = ActionUnits(action_space)

    def forward(self, observation: Any) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(observation).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


class PlainGaussianActor(nn.Module):
    """observation [N, ...] → means and log standard deviations [N, n] of actions in units, which nothing squashes: tanh
    keeps the mean within the bounds, and what is drawn beyond them is clipped. The deviation is learned, but sees no
    state."""

    def __init__(self, body: nn.Module, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.body = body
        self.units = ActionUnits(action_space)
        self.log_std = LogStd(self.units.size)

    def forward(self, observation: Any) -> tuple[Tensor, Tensor]:
        mean, log_std = self.log_std(torch.tanh(self.body(observation))).chunk(2, dim=-1)
        return mean, log_std


class Critic(nn.Module):
    """observation [N, ...], action [N, n] in units → values [N], or [N, atoms] logits or quantiles.

    A categorical critic's support is a buffer: published, saved and copied with the weights.
    """

    support: Tensor

    def __init__(self, body: nn.Module, kind: CriticKind = "scalar", atoms: int = 51) -> None:
        super().__init__()
        self.body = body
        self.kind: CriticKind = kind
        if kind == "categorical":
            self.register_buffer("support", torch.linspace(-1.0, 1.0, atoms))

    def set_support(self, low: float, high: float) -> None:
        """Evenly spaced returns from `low` to `high`, in place."""
        self.support.copy_(torch.linspace(low, high, len(self.support)))

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        outputs: Tensor = self.body(observation, action)
        return outputs.reshape(len(action)) if self.kind == "scalar" else outputs

    def expected(self, outputs: Tensor) -> Tensor:
        """The expected return of what forward gave, [N]."""
        if self.kind == "scalar":
            return outputs
        return categorical_mean(outputs, support=self.support) if self.kind == "categorical" else outputs.mean(-1)

    def expected_return(self, observation: Any, action: Tensor) -> Tensor:
        """[N]"""
        return self.expected(self(observation, action))


class TwinCritic(nn.Module):
    """Two critics, or more, that learn apart: the smallest of them is rarely too large. → values [critics, N]"""

    def __init__(self, first: nn.Module, second: nn.Module, *others: nn.Module) -> None:
        super().__init__()
        self.first, self.second = Critic(first), Critic(second)
        self.others = nn.ModuleList([Critic(other) for other in others])
        self._together = _stack_of(first, second, *others)

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        if self._together is not None:  # both see the same
            return self._together(cast(CriticBody, self.first.body).inputs(observation, action)).squeeze(-1)
        return torch.stack([critic(observation, action) for critic in (self.first, self.second, *self.others)])

    def expected_return(self, observation: Any, action: Tensor) -> Tensor:
        """The smallest, [N]."""
        values: Tensor = self(observation, action)
        return values.amin(0)


class SupportWatch:
    """Notices when the targets of a categorical critic keep leaving its support."""

    PERIOD = 200  # updates over which is averaged
    MOST = 0.05  # of the targets' mass may lie outside: tails do, and all of it is spread out in the beginning

    def __init__(self, critic: Critic) -> None:
        self._support = critic.support
        self._sum: Tensor | float = 0.0
        self._updates = 0
        self._told = False

    def state_dict(self) -> dict[str, Any]:
        return {"sum": float(self._sum), "updates": self._updates, "told": self._told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sum, self._updates, self._told = state["sum"], state["updates"], state["told"]

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

    def __init__(self, actor: Any, critic: Any, normalizer: ObservationNormalizer | None = None) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic
        self.normalizer = normalizer

    def see(self, observation: Any) -> Any:
        """An observation as actor and critic take it."""
        return observation if self.normalizer is None else self.normalizer(observation)

    def seen(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch of transitions with its observations as actor and critic take them."""
        if self.normalizer is None:
            return batch
        return {**batch, **{name: self.see(batch[name]) for name in ("observation", "next_observation")}}


class TemperedNetworks(ControlNetworks):
    """The same with the temperature of maximum-entropy learning, which is published with the weights."""

    def __init__(
        self,
        actor: GaussianActor,
        critic: TwinCritic,
        temperature: float,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(actor, critic, normalizer)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))


class ValuedNetworks(ControlNetworks):
    """The same with what a state is worth, whatever is done in it: `value`, observation [N, ...] → [N, 1]."""

    def __init__(
        self, actor: PlainGaussianActor, critic: TwinCritic, value: nn.Module, normalizer: ObservationNormalizer | None
    ) -> None:
        super().__init__(actor, critic, normalizer)
        self.value = value


class ActorBody(nn.Module):
    """Encoder and an MLP: observation [N, ...] → [N, outputs]."""

    def __init__(
        self, env: Spaces, outputs: int, hidden: tuple[int, ...], activation: str, normalised: bool, encoder: str
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(env.observation_space, encoder)
        self.layers = head_mlp(cast(int, self.encoder.size), hidden, activation, outputs, normalised)
        self._stack = Stack(self.layers)

    def forward(self, observation: Any) -> Tensor:
        return self._stack(self.encoder(observation))


class CriticBody(nn.Module):
    """The same of observation and action: [N, ...], [N, n] → [N, outputs]."""

    def __init__(
        self, env: Spaces, outputs: int, hidden: tuple[int, ...], activation: str, normalised: bool, encoder: str
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(env.observation_space, encoder)
        inputs = cast(int, self.encoder.size) + ActionUnits(env.action_space).size
        self.layers = head_mlp(inputs, hidden, activation, outputs, normalised)
        self._stack = Stack(self.layers)

    def inputs(self, observation: Any, action: Tensor) -> Tensor:
        """What the layers are given, [N, inputs]."""
        return torch.cat([self.encoder(observation), action], dim=-1)

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        return self._stack(self.inputs(observation, action))


def _stack_of(*bodies: nn.Module) -> Stack | None:
    """Critics as one stack: where their encoders learn nothing, so that all see the same."""
    built_in = [body for body in bodies if isinstance(body, CriticBody)]
    if len(built_in) < len(bodies) or any(list(body.encoder.parameters()) for body in built_in):
        return None
    return Stack(*(body.layers for body in built_in))


def head_mlp(inputs: int, hidden: tuple[int, ...], activation: str, outputs: int, normalised: bool) -> nn.Sequential:
    """Dense layers and a linear one; where `normalised`, layer normalisation and tanh follow the first layer, as in
    D4PG's public versions."""
    layers: list[nn.Module] = [*mlp(inputs, hidden, activation)]
    if normalised and hidden:
        layers = [NormalisedDense(inputs, hidden[0]), *mlp(hidden[0], hidden[1:], activation)]
    return nn.Sequential(*layers, orthogonal(nn.Linear(hidden[-1] if hidden else inputs, outputs), HEAD_GAIN))


def make_bodies(
    cfg: ActorAndCritics,
    env: Spaces,
    seed: int,
    *,
    actor_outputs: int = 1,  # for each part of an action
    critic_outputs: int = 1,
    critics: int = 1,
) -> list[nn.Module]:
    """The body of an actor and those of its critics, the user's own when the config names a factory.

    Initial weights depend on the seed alone; the global random state is left as it was.
    """
    size = ActionUnits(env.action_space).size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cfg.network is not None:
            outputs = actor_outputs * size, critic_outputs
            pairs = [_make_pair(cfg.network, env, size, *outputs) for _ in range(critics)]
            return [pairs[0][0], *(critic for _, critic in pairs)]
        form = cfg.activation, cfg.layer_norm, cfg.encoder
        bodies = [
            ActorBody(env, actor_outputs * size, cfg.actor_hidden, *form),
            *(CriticBody(env, critic_outputs, cfg.critic_hidden, *form) for _ in range(critics)),
        ]
    return [compute_in(body, precision_of(cfg)) for body in bodies]


def make_value_body(cfg: ActorAndCritics, env: Spaces, seed: int) -> nn.Module:
    """What a state is worth, [N, ...] → [N, 1]: of the critics' form, also beside networks of the user's own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = ActorBody(env, 1, cfg.critic_hidden, cfg.activation, cfg.layer_norm, cfg.encoder)
    return compute_in(body, precision_of(cfg))


def make_normalizer(cfg: NormalizedObservations, env: Spaces) -> ObservationNormalizer | None:
    """What observations are seen through, where the config asks for it."""
    return ObservationNormalizer(env.observation_space) if cfg.normalize_observations else None


def _make_pair(
    factory: Factory, env: Spaces, actions: int, actor_outputs: int, critic_outputs: int
) -> tuple[nn.Module, nn.Module]:
    """The user's modules, tried on two observations of zeros."""
    name = name_of(factory)
    made = user_module.make(factory, "network", env.observation_space, env.action_space)
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and all(isinstance(part, nn.Module) for part in made)):
        raise UserError(f"The network {name} must return a pair of nn.Modules (actor, critic).")
    actor, critic = made
    count = 2
    observation = zeros(env.observation_space, count)
    units = user_module.attempt(actor, f"The actor of {name}", observation)
    values = user_module.attempt(critic, f"The critic of {name}", observation, torch.zeros(count, actions))
    if list(units.shape) != [count, actor_outputs]:
        raise UserError(
            f"The actor of {name} gave outputs of shape {list(units.shape)} for {count} observations; "
            f"this action space needs {[count, actor_outputs]}."
        )
    if list(values.shape) != [count, critic_outputs] and not (critic_outputs == 1 and list(values.shape) == [count]):
        raise UserError(
            f"The critic of {name} gave outputs of shape {list(values.shape)} for {count} observations; "
            f"this kind of critic needs {[count, critic_outputs]}."
        )
    return actor, critic
