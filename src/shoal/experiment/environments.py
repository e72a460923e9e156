"""The environment that a config names, and how many of it an actor should step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from shoal.config import given, validate_fields
from shoal.data import open_dataset, prepare
from shoal.data.fitting import check_fits
from shoal.data.foreign import SpacePair
from shoal.envs import Environment, EnvSpec, describe, describe_data
from shoal.envs.check import frame_space
from shoal.envs.choosing import choose, most_environments
from shoal.errors import UserError
from shoal.options import Acting, Data, Experience, Learning, Rollouts
from shoal.types import EXTERNAL, NO_ENV

C = TypeVar("C", bound=Acting)
CLIENTS = 16  # environments outside for which batches are made, where nothing else is said
SELDOM, OFTENER = 4.0, 4.0  # where an item is sampled less often, clients' are so many times more: they come slower
LEAST = 8  # rollouts of a batch, below which it is not made smaller


def with_dataset(cfg: C, tell: Callable[[str], None] = lambda _: None) -> C:
    """The config in which --data and --prefill, where it has them and they are given, name folders: what is none was
    converted, with the spaces of the environment where that is given."""
    named: dict[str, str | None] = {}
    if isinstance(cfg, Data) and (cfg.data is not None or cfg.env == NO_ENV):
        named["data"] = cfg.data
    if isinstance(cfg, Experience) and cfg.prefill is not None:
        named["prefill"] = cfg.prefill
    if not named:
        return cfg
    given_by = None if cfg.env == NO_ENV else partial(spaces_of, cfg.env, cfg.env_options)
    folders = {name: str(prepare(value, given_by, tell)) for name, value in named.items()}
    changed: C = replace(cfg, _given=given(cfg), **folders)  # type: ignore[call-arg, arg-type]
    return changed


def spaces_of(env: Environment, options: Mapping[str, Any] | None) -> SpacePair:
    """As an environment has them, for data that do not tell theirs."""
    found = describe(env, options)
    seen = frame_space(found.observation_space, found.stacks)
    return SpacePair(seen, found.native_action_space or found.action_space)


def describe_task(cfg: Acting) -> EnvSpec:
    """What is trained for: the config's environment, which its data must fit, or what the data tell where they are
    alone."""
    validate_fields(cfg, but=("env",))
    if isinstance(cfg, Data) and cfg.data is not None and cfg.env == NO_ENV:
        data = open_dataset(cfg.data)
        spaces = data.observation_space, data.action_space, data.manifest.native_action_space
        return describe_data(data.path.name, *spaces, stack=cfg.frame_stack)
    spec = describe_env(cfg)
    if isinstance(cfg, Data) and cfg.data is not None:
        check_fits(open_dataset(cfg.data), spec)
    if isinstance(cfg, Experience) and cfg.prefill is not None:
        check_fits(open_dataset(cfg.prefill), spec)
    return spec


def describe_env(cfg: Acting, *, apart: bool = True) -> EnvSpec:
    """With the options of the config. `apart` is as for `describe`."""
    if cfg.env == EXTERNAL:
        from shoal.experiment.outside import describe_outside  # needs packages of an extra

        return describe_outside(cfg)
    if cfg.env == NO_ENV:
        raise UserError("--env is missing: there is no environment to play in; name the one that the data are of.")
    validate_fields(cfg, but=("env",))  # of which `describe` can say more
    spec = describe(
        cfg.env,
        cfg.env_options,
        cfg.vectorizer,
        evaluation_options=cfg.eval_env_options,
        evaluation_limit=cfg.eval_limit,
        stack=cfg.frame_stack,
        device=_at_hand(cfg.device if isinstance(cfg, Learning) else cfg.acting_device),
        apart=apart,
    )
    spec = replace(spec, timeout=cfg.env_timeout, device=cfg.acting_device)
    if spec.evaluation is not None:
        spec = replace(spec, evaluation=replace(spec.evaluation, device=cfg.acting_device))
    vectorizer, why = choose(spec, cfg.actors)
    if spec.timeout and vectorizer != "async":
        raise UserError(
            f"--env-timeout {spec.timeout:g} needs a process for each environment: add --vectorizer async "
            f"(it is {vectorizer})."
        )
    return replace(spec, vectorizer=vectorizer, vectorizer_note=why)


def _at_hand(device: str) -> str:
    """Where a vector of tensors is tried: on the CPU of a driver whose learner will have a GPU elsewhere."""
    if device == "cpu":
        return device
    from shoal.runtime import devices  # who plays a trained policy needs no runtime

    return device if devices.missing(device) is None else "cpu"


def fit(cfg: C, env: EnvSpec, runtime: str) -> tuple[C, EnvSpec]:
    """The config with as few environments per actor as its environment's speed calls for, and where that is less than
    the preset has, a smaller batch of rollouts with it; the description says so. What was given stays; so does all of
    a preset that was named, and inline, where a measured time must not decide what is learned. Where the environment
    lives on a device, each learner has the environments that all actors would have had."""
    if env.on_device:
        return _fit_device(cfg, env)
    if runtime == "inline" or not given(cfg).isdisjoint(("envs_per_actor", "preset")):
        return cfg, env
    most, why = most_environments(env, cfg.actors)
    if env.outside:
        most, why = CLIENTS, f"clients are outside, and their number is not known: {CLIENTS} environments are assumed"
    had = cfg.envs_per_actor
    if most is None or most >= had:
        return cfg, env
    changes: dict[str, Any] = {"envs_per_actor": most}
    sampled = cfg.samples_per_insert if env.outside and isinstance(cfg, Experience) else 0.0
    if 0.0 < sampled < SELDOM and "samples_per_insert" not in given(cfg):
        changes["samples_per_insert"] = OFTENER * sampled
    if isinstance(cfg, Rollouts):
        for name, items in (("batch", cfg.batch), ("queue", cfg.queue)):
            if name not in given(cfg):
                changes[name] = min(items, max(LEAST, items * most // had))
    said = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    note = f"{said} (not {had} environments): {why}"
    notes = note if env.vectorizer_note is None else f"{env.vectorizer_note}\n{note}"
    fitted: C = replace(cfg, _given=given(cfg), **changes)  # type: ignore[call-arg]
    return fitted, replace(env, vectorizer_note=notes)


def _fit_device(cfg: C, env: EnvSpec) -> tuple[C, EnvSpec]:
    learners = cfg.learners if isinstance(cfg, Learning) else 1
    if "actors" in given(cfg) and cfg.actors != learners:
        raise UserError(
            f"--actors {cfg.actors} would have nothing to step: {env.name} lives where the learner is, and each of "
            f"--learners {learners} acts in --envs-per-actor environments: leave out --actors."
        )
    environments = cfg.envs_per_actor
    if "envs_per_actor" not in given(cfg):
        environments *= cfg.actors
    changes: dict[str, Any] = {"actors": learners, "envs_per_actor": environments}
    if isinstance(cfg, Experience) and "replay" not in given(cfg):
        changes["replay"] = "uniform"  # as a device draws
    fitted: C = replace(cfg, _given=given(cfg), **changes)  # type: ignore[call-arg]
    nodes = "the learner acts" if learners == 1 else f"each of {learners} learners acts"
    where = cfg.device if isinstance(cfg, Learning) else cfg.acting_device
    note = (
        f"{env.name} is a vector of tensors: {nodes} itself, in {environments:,} environments on its device ({where})"
    )
    return fitted, replace(env, vectorizer_note=note)
