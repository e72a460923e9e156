"""Environments: make, vectorise, describe; nothing else in the project knows autoreset or observation spaces."""

from __future__ import annotations

import gymnasium

from shoal.envs.check import EnvFault
from shoal.envs.episodes import Episode
from shoal.envs.making import EnvSpec, Vectorizer, describe, make
from shoal.envs.vector import Envs, Step

__all__ = ["EnvFault", "EnvSpec", "Envs", "Episode", "Step", "Vectorizer", "describe", "make"]

gymnasium.register(
    "shoal/CartPoleHidden-v0",
    "shoal.envs.wrappers:cartpole_hidden",
    vector_entry_point="shoal.envs.wrappers:CartPoleHiddenVector",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gymnasium.register(
    "shoal/Recall-v0",
    "shoal.envs.recall:Recall",
    vector_entry_point="shoal.envs.recall:RecallVector",
    reward_threshold=0.95,
)
