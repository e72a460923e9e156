"""The pieces of the episode-boundary test that live inside node processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shoal import envs
from shoal.loops.actor import ActorLoop
from shoal.program import Program
from shoal.replay import Pattern, Replay, Table
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore


class Idle:
    """A policy that always takes action 0."""

    def initial_state(self, count: int) -> dict[str, Any]:
        return {}

    def act(self, observation: Any, state: Any, first: Any) -> Any:
        return np.zeros(len(observation), np.int64), state, {}

    def load(self, weights: Any) -> None:
        pass


def make_policy(seed: int) -> Idle:
    return Idle()


def make_envs(name: str, count: int, seed: int) -> Any:
    return envs.make(name, count, seed=seed)


def counting_program(environment: str, count: int, actors: int, pattern: Pattern, rows: int) -> tuple[Program, Any]:
    """Actors that write counting environments' rows into a queue; its reader is the test."""
    program = Program()
    metrics = program.add("metrics", Metrics)
    weights = program.add("weights", WeightStore)
    replay = program.add("replay", Replay, [Table.queue("items", 64)])
    build: Any = partial(make_envs, environment, count)
    for index in range(actors):
        program.add(
            f"actor/{index}",
            ActorLoop,
            build,
            make_policy,  # type: ignore[arg-type]
            {"items": pattern},
            rows,
            [replay],
            weights,
            metrics,
        )
    return program, replay
