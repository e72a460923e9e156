"""The options and spaces that builders of networks read, as tests give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The fields of all configs that say what a network is."""

    network: str | None = None
    core: str | None = None
    hidden: tuple[int, ...] = (64, 64)
    actor_hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared_torso: bool = True
    state_dependent_std: bool = False
    lstm: int = 0
    stream: int = 0
    normalize_observations: bool = False
    layer_norm: bool = False


@dataclass(frozen=True)
class SpacePair:
    """What a builder asks of an environment."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
