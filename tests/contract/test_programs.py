"""Every algorithm's program runs on every runtime; on the inline one its result follows from the seed."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from starting import Start, start_on

from logged_data import OFFLINE, dataset, page_options
from shoal import envs
from shoal.loops.wiring import Settings
from shoal.program import Handle, Program
from shoal.runs import registry
from shoal.runtime import Run
from shoal.types import Columns as Weights
from shoal.versions import NONE, number

TINY: dict[str, Any] = {  # as far as an algorithm has these options
    "actors": 2,
    "envs_per_actor": 2,
    "unroll": 4,
    "rows": 4,
    "batch": 4,
    "queue": 8,
    "capacity": 400,
    "learning_starts": 16,
    "epochs": 1,
    "minibatches": 1,
    "hidden": (8,),
    "actor_hidden": (8,),
    "critic_hidden": (8,),
    "burn_in": 2,
    "length": 4,
    "period": 2,
    "publish_every": 1,
}
UPDATES = 3
ALGORITHMS = registry.names()


def tiny_program(algorithm: str, evaluate: bool = False, updates: int = UPDATES, **chosen: Any) -> Program:
    module = registry.load(algorithm)
    options = {field.name for field in dataclasses.fields(module.Config)}
    small = {name: value for name, value in TINY.items() if name in options}
    cfg = module.Config(**small, **page_options(algorithm), **chosen)
    settings = Settings(max_updates=updates, evaluate=evaluate, eval_episodes=2, eval_every=0.1)
    program: Program = module.program(cfg, envs.describe(cfg.env), settings)
    return program


def finish(run: Run, seconds: float = 100.0) -> tuple[int, Weights]:
    """Wait for the learner's last update; the version and weights it published last."""
    deadline = time.monotonic() + seconds
    while not run.finished(Handle("learner")):
        assert time.monotonic() < deadline, "the learner has not finished"
        run.wait(0.1)
    found: tuple[int, Weights] = run.client(Handle("weights")).newer(NONE)
    return found


def run_tiny(start: Start, algorithm: str, **chosen: Any) -> None:
    run = start(tiny_program(algorithm, evaluate=True, **chosen))
    version, weights = finish(run)
    assert number(version) >= UPDATES
    assert all(np.isfinite(value).all() for value in weights.values())
    assert run.supervisor.restarts.total() == 0
    counts = run.client(Handle("metrics")).snapshot()["counts"]
    assert (counts.get("env_steps", 0) > 0) == (algorithm not in OFFLINE or "online" in chosen)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_program_runs_inline_and_on_local_processes(two_runtimes: Start, algorithm: str) -> None:
    run_tiny(two_runtimes, algorithm)


@pytest.mark.parametrize("algorithm", ["td3_bc", "iql", "cql", "discrete_cql"])
def test_who_learns_from_data_goes_on_with_actors(two_runtimes: Start, algorithm: str) -> None:
    run_tiny(two_runtimes, algorithm, online=True, replay="prioritized")


def test_sac_learns_from_data_and_actors_with_five_critics(two_runtimes: Start) -> None:
    data = dataset("Pendulum-v1")
    run_tiny(two_runtimes, "sac", env="Pendulum-v1", data=data, critics=5, layer_norm=True, replay="prioritized")


def test_impala_runs_on_every_runtime(start: Start) -> None:
    run_tiny(start, "impala")


def test_r2d2_runs_with_central_inference(two_runtimes: Start) -> None:
    run_tiny(two_runtimes, "r2d2", inference="central")


@pytest.mark.slow
def test_r2d2_runs_with_central_inference_on_every_runtime(start: Start) -> None:
    run_tiny(start, "r2d2", inference="central")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "impala"])
def test_every_program_runs_on_every_runtime(start: Start, algorithm: str) -> None:
    run_tiny(start, algorithm)


def inline_weights(algorithm: str, seed: int) -> Weights:
    with start_on("inline", tiny_program(algorithm, updates=5), seed=seed) as run:
        return finish(run)[1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_inline_the_same_seed_gives_the_same_parameters_bit_for_bit_and_another_one_does_not(algorithm: str) -> None:
    first, again, other = (inline_weights(algorithm, seed) for seed in (1, 1, 2))
    assert set(first) == set(again) == set(other)
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes(), name
    assert any(value.tobytes() != other[name].tobytes() for name, value in first.items())
