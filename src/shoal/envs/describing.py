"""Finding out what an environment is: its spaces, its kind, its limits; and whether it keeps its promises at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from shoal import tree
from shoal.envs import atari, check, names
from shoal.envs.choosing import StepTime, measure
from shoal.envs.faults import EnvFault, told_as_a_fault
from shoal.envs.making import usual_stack, vectorize
from shoal.envs.names import Environment
from shoal.envs.spec import EnvOptions, EnvSpec, TaskKind, Vectorizer
from shoal.envs.vector import Envs
from shoal.envs.vectorizers import InProcess
from shoal.errors import UserError, name_of
from shoal.pixels import is_image
from shoal.types import NO_ENV

_SMALL = 256  # observations of up to this many numbers are "classic"


def describe(
    env: Environment,
    options: EnvOptions | None = None,
    vectorizer: Vectorizer = "auto",
    *,
    evaluation_options: EnvOptions | None = None,
    evaluation_limit: int | None = None,
    stack: int = 0,
    device: str = "cpu",
    apart: bool = True,
) -> EnvSpec:
    """What an environment made with these options is. The evaluator's version has `evaluation_options` on top of them,
    and its episodes are cut after `evaluation_limit` steps. `stack` is as for `make`: the spec's spaces are those of
    the stacks that a policy sees. A vector of tensors is tried on the `device`.

    One is made, reset and stepped once, so that what cannot work is said before anything is started; the user's own
    code in a process of its own, since it may end it, unless this one is there for that (`apart=False`).
    """
    if apart and names.is_users_code(env):
        from shoal.envs.trial import describe_apart

        found = describe_apart(env, options, vectorizer, evaluation_options, device)
    else:
        found = describe_here(env, options, vectorizer, evaluation_options, device)
    evaluation = found.evaluation and _stacked(found.evaluation, stack)
    return replace(_stacked(found, stack), evaluation_cap=evaluation_limit, evaluation=evaluation)


def describe_data(
    name: str,
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    native_action: spaces.Space[Any],
    stack: int = 0,
    env: str = NO_ENV,
) -> EnvSpec:
    """What is known where there are data of an environment and no environment, or one that is outside: its spaces."""
    stack = stack or 1
    return EnvSpec(
        env,
        check.stacked_space(observation, stack),
        action,
        kind_of(observation, action),
        None,
        None,
        stack=stack,
        native_action_space=native_action,
        told=name,
    )


def _stacked(found: EnvSpec, stack: int) -> EnvSpec:
    stack = stack or usual_stack(found.env, found.options)
    return replace(found, stack=stack, observation_space=check.stacked_space(found.observation_space, stack))


def describe_here(
    env: Environment,
    options: EnvOptions | None,
    vectorizer: Vectorizer,
    evaluation_options: EnvOptions | None,
    device: str = "cpu",
) -> EnvSpec:
    """`describe` in this process."""
    found = _describe(env, options or {}, vectorizer, device)
    if not evaluation_options:
        return replace(found, evaluation=_whole_games(found))
    evaluation = _describe(env, {**(options or {}), **evaluation_options}, vectorizer, device)
    if (evaluation.observation_space, evaluation.action_space) != (found.observation_space, found.action_space):
        raise UserError(
            f"{found.name} has other spaces with the evaluator's options {dict(evaluation_options)}: "
            f"{evaluation.observation_space}, {evaluation.action_space}; the trained policy could not act there."
        )
    return replace(found, evaluation=_whole_games(evaluation, evaluation_options) or evaluation)


def _whole_games(found: EnvSpec, given: EnvOptions | None = None) -> EnvSpec | None:
    """Atari as the evaluator plays it where nobody says otherwise: until the game ends."""
    if not atari.is_atari(names.resolve(found.env)) or "episodic_life" in (given or {}):
        return None
    fires = {"fire_each_life": True} if found.options.get("episodic_life", True) else {}  # as it is used to
    return replace(found, options={**found.options, "episodic_life": False, **fires})


def _describe(env: Environment, options: EnvOptions, vectorizer: Vectorizer, device: str) -> EnvSpec:
    name = name_of(env)
    try:
        asked: Vectorizer = "sync" if vectorizer == "async" else vectorizer
        vector: Any = vectorize(env, 1, seed=0, options=options, vectorizer=asked, device=device)
        one = getattr(vector, "envs", [vector])[0]  # a single environment where there is one
        with told_as_a_fault(name, "used"):
            envs = Envs(vector, name, seed=0)
            measured = isinstance(vector, InProcess) and names.is_users_code(env)
            given = f" with the options {dict(options)}" if options else ""
            step_time = _try(envs, name, given, measured)
            told = vector.told if isinstance(vector, InProcess) else ()
            mask_note = check.mask_note(name, envs.observation_space, told, getattr(one, "unwrapped", one))
            registered = getattr(one, "spec", None)
            runs_ale = _runs_ale(one)
    except EnvFault as fault:
        raise UserError(str(fault)) from fault
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise UserError(names.missing_package(name, error)) from error
    limit = threshold = None
    if atari.is_atari(named := names.resolve(env)):
        limit = atari.protocol_of(named, dict(options)).max_episode_steps  # type: ignore[arg-type]
        registered = None
    if isinstance(registered, registration.EnvSpec):
        limit, threshold = _time_limit(registered), registered.reward_threshold
    kind: TaskKind = "atari" if runs_ale else kind_of(envs.observation_space, envs.action_space)
    return EnvSpec(
        env,
        envs.observation_space,
        envs.action_space,
        kind,
        limit,
        threshold,
        options=dict(options),
        vectorizer=vectorizer,
        native_action_space=vector.single_action_space,
        registered=names.registered_by_user(env),
        step_time=step_time,
        mask_note=mask_note,
        on_device=getattr(vector, "tensors", None) is not None,
    )


def _runs_ale(one: Any) -> bool:
    """Whether it is code of ale-py, whatever wraps it."""
    if isinstance(one, atari.NativeGames):
        return True
    return any(base.__module__.startswith("ale_py.") for base in type(getattr(one, "unwrapped", one)).__mro__)


def _try(envs: Envs, name: str, given: str, measured: bool) -> StepTime:
    envs.action_space.seed(0)
    try:
        with told_as_a_fault(name, f"reset{given}"):
            try:
                envs.reset()
            except TypeError as error:
                if "unexpected keyword argument 'seed'" not in str(error):
                    raise
                raise EnvFault(f"{name}: reset() takes no seed; {check.OLD_GYM}, or let reset take seed.") from error
        with told_as_a_fault(name, f"stepped{given}"):
            envs.step(np.asarray(envs.action_space.sample())[np.newaxis])
            return measure(envs) if measured else StepTime()
    finally:
        with told_as_a_fault(name, "closed"):
            envs.close()


def _time_limit(registered: registration.EnvSpec) -> int | None:
    """Steps after which an episode ends at the latest; ALE counts frames, of which a step takes several."""
    steps = registered.kwargs.get("max_episode_steps", registered.max_episode_steps)
    frames = registered.kwargs.get("max_num_frames_per_episode")
    if steps is None and isinstance(frames, int):
        skip = registered.kwargs.get("frameskip", 1)
        steps = frames // min(skip if isinstance(skip, tuple) else (skip,))
    return steps if isinstance(steps, int) and steps > 0 else None


def kind_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> TaskKind:
    """As far as spaces tell."""
    leaves = list(tree.leaf_spaces(observation, "observation").values())
    if any(map(is_image, leaves)):
        return "pixels"
    if isinstance(action, spaces.Box):
        return "control"
    return "classic" if sum(int(np.prod(check.shape_of(s))) for s in leaves) <= _SMALL else "other"
