"""The environment that a config names."""

from __future__ import annotations

from typing import Any

from shoal.envs import EnvSpec, describe


def describe_env(cfg: Any) -> EnvSpec:
    """With the options of the config; one of a user's may lack some of them."""
    return describe(
        cfg.env,
        getattr(cfg, "env_options", None),
        getattr(cfg, "vectorizer", "auto"),
        evaluation_options=getattr(cfg, "eval_env_options", None),
        evaluation_limit=getattr(cfg, "eval_limit", None),
        stack=getattr(cfg, "frame_stack", 0),
    )
