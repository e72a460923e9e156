"""The options and spaces that builders of networks read, as tests give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from shoal.config import config
from shoal.options import ActorAndCritics, Normalization, PolicyAndValue, RecurrentDuelingNetwork


@config(hidden=(64, 64), actor_hidden=(64, 64), critic_hidden=(64, 64), activation="tanh", lstm=0, shared_torso=True)
class NetworkOptions(PolicyAndValue, RecurrentDuelingNetwork, ActorAndCritics, Normalization):
    """The options of all configs that say what a network is."""


@dataclass(frozen=True)
class SpacePair:
    """What a builder asks of an environment."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
