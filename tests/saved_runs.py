"""Run directories as a run leaves them, without training: for tests of what is done with them afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from shoal.envs.describing import _stacked, describe_here
from shoal.runs import records, registry, trust
from shoal.runs.directory import RunDirectory
from shoal.runs.options import RunOptions

SMALL = {"hidden": (8,), "actor_hidden": (8,), "critic_hidden": (8,), "preset": "none", "stream": 8}


def saved_run(path: Path, algorithm: str = "impala", seed: int = 0, **chosen: Any) -> Path:
    """A run directory with weights that no training has touched; `chosen` are fields of the algorithm's config."""
    page = registry.load(algorithm)
    fields = {field.name for field in dataclasses.fields(page.Config)}
    cfg = page.Config(**{name: value for name, value in SMALL.items() if name in fields} | chosen)
    env = _stacked(describe_here(cfg.env, None, "auto", None), getattr(cfg, "frame_stack", 0))
    made = RunDirectory.create(str(path), algorithm, "env", seed, print)
    record = records.record_of(algorithm, cfg, env, RunOptions(seed=seed))
    made.write_config(record)
    trust.remember(record)  # as a run that was made here
    weights = page.make_policy(cfg, env, seed).state_dict()["weights"]
    random = np.random.default_rng(seed)  # as made, many heads are so small that actions hardly differ
    noisy = {
        name: value + random.normal(0, _noise(value), value.shape).astype(value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in weights.items()
    }
    noisy |= {name: np.abs(value) for name, value in noisy.items() if name.endswith("variance")}
    made.write_weights(noisy)
    made.close()
    return path


def _noise(weight: Any) -> float:
    """Less for wide layers: activations of thousands, as no trained network has them, are full of rounding."""
    inputs = int(np.prod(weight.shape[1:]))
    return min(0.3, 4.0 / inputs)
