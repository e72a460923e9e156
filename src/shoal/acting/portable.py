"""A policy as plain layers, for who acts elsewhere with numpy alone, in any language: arrays and words, and no code."""

from __future__ import annotations

from typing import Literal, NamedTuple

from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.acting.numpy_actor_critic import NumpyActorCritic
from shoal.acting.numpy_q import NumpyQ
from shoal.acting.policy import Policy
from shoal.acting.q import VALUES, QPolicy
from shoal.functional.distributions import Categorical
from shoal.types import Array

PlainLayer = tuple[Array, Array, str]  # weight [m, n], bias [m], "tanh", "relu" or "": y = f(weight · x + bias)


class Portable(NamedTuple):
    """How actions, numbered from 0, are chosen by what the layers make of an observation, flat in C order."""

    chooses: Literal["categorical", "epsilon_greedy"]  # of logits, or of values
    actions: int
    layers: list[PlainLayer]
    records: tuple[str, ...]  # columns that belong to a row beside its action: log_prob, or q and value


def portable(policy: Policy) -> Portable | None:
    """As the policy is now; None where it cannot be said so: one that remembers, sees images or parts, or acts in
    numbers, and a network of the user's own."""
    if isinstance(policy, ActorCriticPolicy) and isinstance(policy.mirror, NumpyActorCritic):
        layers = policy.mirror.layers()
        if layers is not None and isinstance(policy.network.distribution, Categorical):
            return Portable("categorical", policy.network.distribution.count, layers, ("log_prob",))
    if isinstance(policy, QPolicy) and isinstance(policy.mirror, NumpyQ):
        layers = policy.mirror.layers()
        if layers is not None:
            records = () if policy.first_priorities is None else VALUES
            return Portable("epsilon_greedy", len(layers[-1][1]), layers, records)
    return None
