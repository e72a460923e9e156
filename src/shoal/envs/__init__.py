"""Environments: make, vectorise, describe; nothing else in the project knows autoreset or observation spaces."""

from __future__ import annotations

from shoal.envs.check import EnvFault
from shoal.envs.making import EnvSpec, Vectorizer, describe, make
from shoal.envs.vector import Envs, Episode, Step

__all__ = ["EnvFault", "EnvSpec", "Envs", "Episode", "Step", "Vectorizer", "describe", "make"]
