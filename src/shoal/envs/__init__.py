"""Environments: make, vectorise, describe; nothing else in the project knows autoreset or observation spaces."""

from __future__ import annotations

from shoal.envs import tasks, torch_tasks
from shoal.envs.describing import describe, describe_data
from shoal.envs.episodes import Episode
from shoal.envs.faults import EnvFault
from shoal.envs.making import make, make_tensors
from shoal.envs.names import Environment
from shoal.envs.spec import EVALUATION_LIMIT, EnvSpec, TaskKind, Vectorizer
from shoal.envs.vector import Envs
from shoal.errors import name_of
from shoal.step import Step

__all__ = [
    "EVALUATION_LIMIT",
    "EnvFault",
    "EnvSpec",
    "Environment",
    "Envs",
    "Episode",
    "Step",
    "TaskKind",
    "Vectorizer",
    "describe",
    "describe_data",
    "make",
    "make_tensors",
    "name_of",
    "tasks",
    "torch_tasks",
]
