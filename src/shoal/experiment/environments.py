"""The environment that a config names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.config import validate_fields
from shoal.envs import EnvSpec, describe
from shoal.envs.choosing import choose
from shoal.errors import UserError


def describe_env(cfg: Any, *, apart: bool = True) -> EnvSpec:
    """With the options of the config; one of a user's may lack some of them. `apart` is as for `describe`."""
    validate_fields(cfg, but=("env",))  # of which `describe` can say more
    spec = describe(
        cfg.env,
        getattr(cfg, "env_options", None),
        getattr(cfg, "vectorizer", "auto"),
        evaluation_options=getattr(cfg, "eval_env_options", None),
        evaluation_limit=getattr(cfg, "eval_limit", None),
        stack=getattr(cfg, "frame_stack", 0),
        apart=apart,
    )
    spec = replace(spec, timeout=getattr(cfg, "env_timeout", 0.0))
    vectorizer, why = choose(spec, getattr(cfg, "actors", 1))
    if spec.timeout and vectorizer != "async":
        raise UserError(
            f"--env-timeout {spec.timeout:g} needs a process for each environment: add --vectorizer async "
            f"(it is {vectorizer})."
        )
    return replace(spec, vectorizer=vectorizer, vectorizer_note=why)
