"""Building an actor-critic from a config: the built-in one, or the user's own."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from gymnasium import spaces

from shoal.errors import name_of
from shoal.nets import user_module
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.images import compute_in, precision_of
from shoal.nets.normalize import ObservationNormalizer
from shoal.nets.user import UserNetwork
from shoal.options import NormalizedObservations, PolicyAndValue


class Spaces(Protocol):
    """What is asked of a description of an environment."""

    @property
    def observation_space(self) -> spaces.Space[Any]: ...
    @property
    def action_space(self) -> spaces.Space[Any]: ...


def make_actor_critic(cfg: PolicyAndValue, env: Spaces, seed: int) -> ActorCritic | UserNetwork:
    """The user's network when the config names one as module:factory, else an `ActorCritic`.

    If the config says `normalize_observations`, it sees them through statistics of theirs (`shoal.nets.normalize`).
    Initial weights depend on the seed alone; the global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: ActorCritic | UserNetwork
        if cfg.network is not None:
            made = user_module.make(cfg.network, "network", env.observation_space, env.action_space)
            network = UserNetwork(made, env.observation_space, env.action_space, name_of(cfg.network))
        else:
            network = ActorCritic(
                env.observation_space,
                env.action_space,
                hidden=cfg.hidden,
                activation=cfg.activation,
                lstm=cfg.lstm,
                shared=cfg.shared_torso,
                state_dependent_std=cfg.state_dependent_std,
                encoder=cfg.encoder,
            )
            compute_in(network, precision_of(cfg))
    if isinstance(cfg, NormalizedObservations) and cfg.normalize_observations:
        network.normalizer = ObservationNormalizer(env.observation_space)
    return network
