"""Playing a trained policy again, from nothing but its run directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal import envs
from shoal.errors import UserError
from shoal.experiment import directory, records, registry
from shoal.experiment.directory import Weights
from shoal.experiment.training import describe_env
from shoal.factories import name_of
from shoal.loops.evaluator import evaluate

AT_ONCE = 16  # environments stepped together
SHOWN = 3  # faults of weights that are told


@dataclass(frozen=True)
class Evaluation:
    run_dir: str
    algorithm: str
    env: str
    seed: int
    episodes: int
    eval_return: float
    spread: float  # standard deviation over the episodes
    lowest: float
    highest: float


def evaluate_run(path: Path, episodes: int = 50, seed: int | None = None, **given: str | None) -> Evaluation:
    """Greedy, fresh episodes; the seed is drawn anew when none is given. Fields of the config that are `given`, such as
    `env` and `network`, take the place of the recorded ones."""
    if episodes < 1:
        raise UserError(f"--episodes {episodes} is too small: give at least 1.")
    name, algorithm, cfg = records.rebuild(path, {key: value for key, value in given.items() if value is not None})
    weights = directory.read_weights(path)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    spec = describe_env(cfg)
    policy = algorithm.make_policy(cfg, spec, seed, greedy=True)
    load_checked(policy, weights, path / directory.WEIGHTS)
    made = envs.make(spec.for_evaluation(), min(episodes, AT_ONCE), seed=seed)
    try:
        returns = evaluate(made, policy, episodes)
    except envs.EnvFault as fault:
        raise UserError(str(fault)) from fault
    finally:
        made.close()
    return Evaluation(
        run_dir=str(path),
        algorithm=registry.short_name(name),
        env=name_of(cfg.env),
        seed=seed,
        episodes=episodes,
        eval_return=float(np.mean(returns)),
        spread=float(np.std(returns)),
        lowest=float(np.min(returns)),
        highest=float(np.max(returns)),
    )


def load_checked(policy: Any, weights: Weights, path: Path) -> None:
    """Load weights that have the names, shapes and dtypes of the policy's own, and are finite; refuse others."""
    broken = [name for name, value in weights.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if broken:
        raise UserError(
            f"{path} holds numbers that are not finite, in {_listed(broken)}: the run diverged or the file is damaged."
        )
    expected = policy.state_dict()["weights"] if hasattr(policy, "state_dict") else None
    faults = [] if expected is None else _misfits(weights, expected)
    if faults:
        raise UserError(
            f"{path} does not fit the network that the run's config builds: {_listed(faults)}. Has its code changed?"
        )
    try:
        policy.load(weights)
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"{path} does not fit the network that the run's config builds ({error}).") from None


def _misfits(weights: Weights, expected: Weights) -> list[str]:
    faults = [f"it lacks {name} {list(value.shape)}" for name, value in expected.items() if name not in weights]
    for name, value in weights.items():
        if name not in expected:
            faults.append(f"it has {name} {list(value.shape)}, which the network has not")
        elif value.shape != expected[name].shape:
            faults.append(f"{name} is {list(value.shape)} and must be {list(expected[name].shape)}")
        elif value.dtype != expected[name].dtype:
            faults.append(f"{name} is {value.dtype} and must be {expected[name].dtype}")
    return faults


def _listed(parts: list[str]) -> str:
    more = len(parts) - SHOWN
    return ", ".join(parts[:SHOWN]) + (f" and {more} more" if more > 0 else "")
