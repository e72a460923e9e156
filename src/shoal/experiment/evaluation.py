"""Playing a trained policy again, from nothing but its run directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal import config, envs
from shoal.errors import UserError
from shoal.experiment import directory, registry
from shoal.experiment.training import describe_env
from shoal.loops.evaluator import evaluate

AT_ONCE = 16  # environments stepped together


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


def evaluate_run(path: Path, episodes: int = 50, seed: int | None = None) -> Evaluation:
    """Greedy, fresh episodes; the seed is drawn anew when none is given."""
    if episodes < 1:
        raise UserError(f"--episodes {episodes} is too small: give at least 1.")
    record = directory.read_config(path)
    weights = directory.read_weights(path)
    algorithm = registry.load(record["algorithm"])
    cfg = config.from_record(algorithm.Config, record["config"])
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    spec = describe_env(cfg)
    policy = algorithm.make_policy(cfg, spec, seed, greedy=True)
    try:
        policy.load(weights)
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The weights in {path} do not fit the network that its config builds ({error}): has its code changed?"
        ) from None
    vectorizer: envs.Vectorizer = getattr(cfg, "vectorizer", "auto")
    made = envs.make(cfg.env, min(episodes, AT_ONCE), seed=seed, vectorizer=vectorizer)
    try:
        returns = evaluate(made, policy, episodes)
    finally:
        made.close()
    return Evaluation(
        run_dir=str(path),
        algorithm=registry.short_name(record["algorithm"]),
        env=cfg.env,
        seed=seed,
        episodes=episodes,
        eval_return=float(np.mean(returns)),
        spread=float(np.std(returns)),
        lowest=float(np.min(returns)),
        highest=float(np.max(returns)),
    )
