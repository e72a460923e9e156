"""From what the user names to a running vector of environments: Gymnasium ids and `module:factory`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode, VectorEnv

from shoal.envs import check, names
from shoal.envs.sync import AsyncVector, MakeOne, SyncVector, Vector, spread
from shoal.envs.vector import Envs
from shoal.errors import UserError

Vectorizer = Literal["auto", "native", "sync", "async"]
Kind = Literal["classic", "control", "atari", "other"]
Options = Mapping[str, Any]

_UNKNOWN_OPTION = "unexpected keyword argument"  # how Python's TypeError says it
_SMALL = 256  # observations of up to this many numbers are "classic"


@dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment before training: enough to build networks and to choose a preset."""

    spec: str
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    kind: Kind
    max_episode_steps: int | None
    reward_threshold: float | None

    @property
    def observation_bytes(self) -> int:
        """Of one observation, as it is stored."""
        leaves = check.leaf_spaces(self.observation_space).values()
        return sum(int(np.prod(check.shape_of(s), dtype=np.int64)) * np.dtype(s.dtype).itemsize for s in leaves)


def make(spec: str, count: int, *, seed: int, options: Options | None = None, vectorizer: Vectorizer = "auto") -> Envs:
    """`count` environments named by a Gymnasium id or by the user's `module:factory`.

    `options` are given to the environment or to the factory. A factory returns a gymnasium.Env, a dm_env.Environment,
    or, when it takes `count` or `num_envs`, a gymnasium.vector.VectorEnv of that many; a factory that takes `seed` is
    given one. `vectorizer`: "native" is the environment's own vector version, "sync" steps one after another,
    "async" gives each a process; "auto" is native where there is one, else sync.
    """
    return Envs(_vector(spec, count, seed, dict(options or {}), vectorizer), spec, seed)


def describe(spec: str, options: Options | None = None, vectorizer: Vectorizer = "auto") -> EnvSpec:
    """The spaces and the kind of an environment, as `make` with the same arguments would give them."""
    options = dict(options or {})
    envs = make(spec, 1, seed=0, options=options, vectorizer="sync" if vectorizer == "async" else vectorizer)
    envs.close()
    registered = names.resolve(spec)
    limit = threshold = None
    if isinstance(registered, registration.EnvSpec):
        limit, threshold = options.get("max_episode_steps", registered.max_episode_steps), registered.reward_threshold
    kind = _kind(envs.observation_space, envs.action_space, spec)
    return EnvSpec(spec, envs.observation_space, envs.action_space, kind, limit, threshold)


def _kind(observation: spaces.Space[Any], action: spaces.Space[Any], spec: str) -> Kind:
    leaves = list(check.leaf_spaces(observation).values())
    if spec.startswith("ALE/") or any(s.dtype == np.uint8 and len(check.shape_of(s)) >= 2 for s in leaves):
        return "atari"
    if isinstance(action, spaces.Box):
        return "control"
    return "classic" if sum(int(np.prod(check.shape_of(s))) for s in leaves) <= _SMALL else "other"


def _vector(spec: str, count: int, seed: int, options: dict[str, Any], vectorizer: Vectorizer) -> Vector:
    if vectorizer not in get_args(Vectorizer):
        raise UserError(f"vectorizer {vectorizer!r} is unknown; choose from {', '.join(get_args(Vectorizer))}.")
    if count < 1:
        raise UserError(f"{count} environments were asked for; at least 1 is needed.")
    found = names.resolve(spec)
    try:
        if isinstance(found, registration.EnvSpec):
            return _vector_of_registered(spec, found, count, options, vectorizer)
        return _vector_of_factory(spec, found, count, seed, options, vectorizer)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise UserError(names.missing_package(spec, error)) from error


# Gymnasium ids


def _vector_of_registered(
    spec: str, registered: registration.EnvSpec, count: int, options: dict[str, Any], vectorizer: Vectorizer
) -> Vector:
    if vectorizer in ("auto", "native") and registered.vector_entry_point is not None:
        native = _native(registered, count, options, insist=vectorizer == "native")
        if native is not None:
            return native
    if vectorizer == "native":
        raise UserError(f"{spec} has no vector version with NEXT_STEP autoreset; leave the vectorizer at 'auto'.")
    if registered.entry_point is None:
        raise UserError(f"{spec} exists only as a vector environment without NEXT_STEP autoreset, which is needed.")
    # Our own checks take the place of Gymnasium's checker, which costs time at every step.
    make_one = partial(_make_registered, registered, {"disable_env_checker": True} | options)
    return _looped([make_one] * count, spec, vectorizer)


def _make_registered(registered: registration.EnvSpec, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(registered, **options)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):
            raise
        raise UserError(f"{registered.id} cannot be made: {error}") from error  # what has moved to another package
    except TypeError as error:
        if _UNKNOWN_OPTION not in str(error):
            raise
        said = str(error).partition(" was raised from")[0]
        raise UserError(f"{registered.id} does not take these options: {said}.") from error


def _native(registered: registration.EnvSpec, count: int, options: dict[str, Any], insist: bool) -> Vector | None:
    if registered.additional_wrappers:
        return None
    try:
        vector = gymnasium.make_vec(registered, count, vectorization_mode="vector_entry_point", **options)
    except TypeError as error:
        if _UNKNOWN_OPTION not in str(error):
            raise
        if insist:
            raise UserError(f"The vector version of {registered.id} does not take these options: {error}") from error
        return None  # the single version may know the option
    if vector.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
        return vector
    vector.close()
    return None


def _looped(makers: list[MakeOne], spec: str, vectorizer: Vectorizer) -> Vector:
    return AsyncVector(makers) if vectorizer == "async" else SyncVector(makers, spec)


# The user's factories


def _vector_of_factory(
    spec: str, factory: Callable[..., Any], count: int, seed: int, options: dict[str, Any], vectorizer: Vectorizer
) -> Vector:
    parameters = _parameters(factory)
    seeds = spread(seed, count)
    counted = next((name for name in ("count", "num_envs") if name in parameters), None)

    def one(number: int) -> Any:
        extra = {"seed": seeds[number]} if "seed" in parameters else {}
        return factory(**extra | options)

    if counted is not None:
        if vectorizer in ("sync", "async"):
            raise UserError(f"{spec} makes a vector of environments itself; leave the vectorizer at 'auto'.")
        options = {counted: count} | options
    _check_call(spec, factory, {**options, **({"seed": seed} if "seed" in parameters else {})})
    first = one(0)
    if isinstance(first, VectorEnv):
        return _checked_vector(spec, first, count)
    if counted is not None:
        raise UserError(
            f"{spec} takes '{counted}' but returned {type(first).__name__}; return a VectorEnv of that many."
        )
    if vectorizer == "native":
        raise UserError(f"{spec} makes single environments; leave the vectorizer at 'auto' or choose 'sync'.")
    made = [first]  # the one that was made to see what the factory returns is the first of the vector

    def make_one(number: int) -> gymnasium.Env[Any, Any]:
        return _as_gymnasium(made.pop() if made and number == 0 else one(number), spec)

    return _looped([partial(make_one, number) for number in range(count)], spec, vectorizer)


def _checked_vector(spec: str, vector: Any, count: int) -> Vector:
    if vector.num_envs != count:
        raise UserError(
            f"{spec} returned a vector of {vector.num_envs} environments where {count} were asked for; "
            "let the factory take a 'count' argument."
        )
    mode = vector.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        raise UserError(
            f"{spec} returned a vector environment whose metadata['autoreset_mode'] is {mode}; "
            "it must be gymnasium.vector.AutoresetMode.NEXT_STEP."
        )
    return vector  # type: ignore[no-any-return]


def _as_gymnasium(environment: Any, spec: str) -> gymnasium.Env[Any, Any]:
    if isinstance(environment, gymnasium.Env):
        return environment
    dm_env = sys.modules.get("dm_env")  # whoever made such an environment has imported it
    if dm_env is not None and isinstance(environment, dm_env.Environment):
        from shoal.envs.dm import FromDmEnv

        return FromDmEnv(environment, spec)
    raise UserError(
        f"{spec} returned {type(environment).__name__}; it must return a gymnasium.Env, a dm_env.Environment, "
        "or, when it takes 'count', a gymnasium.vector.VectorEnv."
    )


def _check_call(spec: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise UserError(f"{spec} cannot be called with the options {options}: {error}.") from error
    except ValueError:  # some built-in callables do not tell their parameters
        pass


def _parameters(factory: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some built-in callables have none
        return []
