"""The environment that a config names."""

from __future__ import annotations

from typing import Any

from shoal.envs import EnvSpec, describe


def describe_env(cfg: Any) -> EnvSpec:
    return describe(cfg.env, vectorizer=getattr(cfg, "vectorizer", "auto"))
