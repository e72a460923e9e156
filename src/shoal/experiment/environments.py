"""The environment that a config names."""

from __future__ import annotations

from dataclasses import replace

from shoal.config import validate_fields
from shoal.envs import EnvSpec, describe
from shoal.envs.choosing import choose
from shoal.errors import UserError
from shoal.options import Acting


def describe_env(cfg: Acting, *, apart: bool = True) -> EnvSpec:
    """With the options of the config. `apart` is as for `describe`."""
    validate_fields(cfg, but=("env",))  # of which `describe` can say more
    spec = describe(
        cfg.env,
        cfg.env_options,
        cfg.vectorizer,
        evaluation_options=cfg.eval_env_options,
        evaluation_limit=cfg.eval_limit,
        stack=cfg.frame_stack,
        apart=apart,
    )
    spec = replace(spec, timeout=cfg.env_timeout)
    vectorizer, why = choose(spec, cfg.actors)
    if spec.timeout and vectorizer != "async":
        raise UserError(
            f"--env-timeout {spec.timeout:g} needs a process for each environment: add --vectorizer async "
            f"(it is {vectorizer})."
        )
    return replace(spec, vectorizer=vectorizer, vectorizer_note=why)
