"""From what the user names or gives to a running vector of environments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import gymnasium
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode, VectorEnv

from shoal.envs import atari, check, names, torch_tasks
from shoal.envs.adapters import as_tensors
from shoal.envs.faults import told_as_a_fault
from shoal.envs.names import Environment
from shoal.envs.options import OF_GYMNASIUM, check_options, parameters_of, unknown_option
from shoal.envs.processes import SubProcesses
from shoal.envs.spec import EnvOptions, EnvSpec, Vectorizer
from shoal.envs.vector import Envs
from shoal.envs.vectorizers import InProcess, MakeOne, VectorEnvLike, spread
from shoal.errors import UserError, name_of

if TYPE_CHECKING:  # which would take seconds to import
    from shoal.envs.tensors import TensorEnvs

_UNKNOWN_OPTION = "unexpected keyword argument"  # how Python's TypeError says it
COUNTS = ("count", "num_envs")  # parameters of factories of vectors


def make(
    env: Environment | EnvSpec,
    count: int,
    *,
    seed: int,
    options: EnvOptions | None = None,
    vectorizer: Vectorizer | None = None,
    limit: int | None = None,
    stack: int = 0,
    timeout: float = 0.0,
    replaces: bool = False,
) -> Envs:
    """`count` environments: of an `EnvSpec`, of a Gymnasium id, or of the user's factory or its name `module:factory`.

    `options` are given to the environment or to the factory. A factory returns a gymnasium.Env, a dm_env.Environment,
    or, when it takes `count` or `num_envs`, a gymnasium.vector.VectorEnv of that many, or a vector of tensors
    (`shoal.envs.tensors`), with the `device` that it is to live on if it takes one; a factory that takes `seed` is
    given one. `vectorizer`: "native" is the environment's own vector version, "sync" steps one after another,
    "async" gives each a process; "auto" is native where there is one, else sync. `limit` truncates episodes after so
    many steps. `stack` is the number of frames that make up what a policy sees of an image (`Envs.stacks`); 0: what is
    usual, 4 for Atari and else 1. In processes of their own, environments that take longer for a step than `timeout`
    seconds are replaced; 0: however long it takes. Where it `replaces`, so is one that raises or gives what it may not,
    and its episode is truncated (`Envs.losses`); else that is an `EnvFault` of all, as it always is of a vector that
    steps its environments itself. What an `EnvSpec` says of these holds where nothing else is given.
    """
    device = "cpu"
    if isinstance(env, EnvSpec):
        names.know(env.registered)
        stack, timeout = stack or env.stack, timeout or env.timeout
        options = {**env.options, **(options or {})}
        vectorizer, limit, device, env = vectorizer or env.vectorizer, limit or env.limit, env.device, env.env
    vector = vectorize(
        env, count, seed=seed, options=options or {}, vectorizer=vectorizer or "auto", limit=limit, device=device
    )
    in_the_vector = isinstance(vector, InProcess | SubProcesses | atari.NativeGames)
    if isinstance(vector, SubProcesses):
        vector.timeout = timeout
    if isinstance(vector, InProcess | SubProcesses):
        vector.replaces = replaces
    stack = stack or usual_stack(env, options or {})
    return Envs(vector, name_of(env), seed, None if in_the_vector else limit, stack)


def make_tensors(env: EnvSpec, count: int, *, seed: int, device: str) -> TensorEnvs:
    """`count` environments that live on a device: of what was described as a vector of tensors."""
    names.know(env.registered)
    vector = vectorize(env.env, count, seed=seed, options=env.options, vectorizer="auto", device=device)
    found: TensorEnvs | None = getattr(vector, "tensors", None)
    if found is None:
        raise UserError(f"{env.name} gave tensors when it was tried, and gives arrays now.")
    return found


def makes_vectors(env: Environment) -> bool:
    """Whether it is a factory of vectors, which step their environments themselves."""
    found = names.resolve(env)
    if isinstance(found, registration.EnvSpec):
        return found.namespace == torch_tasks.NAMESPACE
    return any(parameter in parameters_of(found) for parameter in COUNTS)


def usual_stack(env: Environment, options: EnvOptions) -> int:
    """Of how many frames a policy sees stacks, where nobody says it."""
    found = names.resolve(env)
    return atari.protocol_of(found, dict(options)).stack_num if atari.is_atari(found) else 1  # type: ignore[arg-type]


def vectorize(
    env: Environment,
    count: int,
    *,
    seed: int,
    options: EnvOptions,
    vectorizer: Vectorizer,
    limit: int | None = None,
    device: str = "cpu",
) -> VectorEnvLike:
    """The vector that `make` steps. A `limit` is built into environments that are made one by one, and only there.
    Vectors of tensors are made on the `device`; all others have none."""
    if vectorizer not in get_args(Vectorizer):
        raise UserError(f"vectorizer {vectorizer!r} is unknown; choose from {', '.join(get_args(Vectorizer))}.")
    if count < 1:
        raise UserError(f"{count} environments were asked for; at least 1 is needed.")
    if limit is not None and limit < 1:
        raise UserError(f"episodes cannot be limited to {limit} steps; at least 1 is needed.")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise UserError(f"the options of an environment are values by name; {options!r} is no such mapping.")
    found, name = names.resolve(env), name_of(env)
    given = f" with the options {dict(options)}" if options else ""
    try:
        with told_as_a_fault(name, f"made{given}"):
            if isinstance(found, registration.EnvSpec):
                if found.namespace == torch_tasks.NAMESPACE:
                    own = {**found.kwargs, **options}
                    return _vector_of_factory(name, _maker(found), count, seed, own, vectorizer, limit, device, found)
                return _vector_of_registered(name, found, count, dict(options), vectorizer, limit)
            return _vector_of_factory(name, found, count, seed, dict(options), vectorizer, limit, device)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise UserError(names.missing_package(name, error)) from error


def _one_by_one(makers: list[MakeOne], name: str, vectorizer: Vectorizer, limit: int | None) -> VectorEnvLike:
    if limit is not None:
        makers = [partial(_limited, make_one, limit) for make_one in makers]
    return SubProcesses(makers, name) if vectorizer == "async" else InProcess(makers, name)


def _limited(make_one: MakeOne, limit: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(make_one(), limit)


# Gymnasium ids


def _vector_of_registered(
    name: str,
    registered: registration.EnvSpec,
    count: int,
    options: dict[str, Any],
    vectorizer: Vectorizer,
    limit: int | None,
) -> VectorEnvLike:
    if atari.is_atari(registered):
        check_options(name, atari.Protocol, options, beside=("reward_clipping",))
        protocol, game = atari.protocol_of(registered, options, limit), registered.kwargs["game"]
        if vectorizer == "native" or (vectorizer == "auto" and protocol.render_mode is None):
            return atari.NativeGames(game, count, protocol)
        return _one_by_one([partial(_atari_game, game, protocol)] * count, name, vectorizer, None)
    check_options(name, _maker(registered), options, beside=(*OF_GYMNASIUM, *_vector_options(registered)))
    if vectorizer in ("auto", "native") and registered.vector_entry_point is not None:
        native = _native(registered, count, options, insist=vectorizer == "native")
        if native is not None:
            return native
    if vectorizer == "native":
        raise UserError(f"{name} has no vector version with NEXT_STEP autoreset; leave the vectorizer at 'auto'.")
    if registered.entry_point is None:
        raise UserError(f"{name} exists only as a vector environment without NEXT_STEP autoreset, which is needed.")
    # Our own checks take the place of Gymnasium's checker, which costs time at every step.
    make_one = partial(_make_registered, registered, {"disable_env_checker": True} | options)
    return _one_by_one([make_one] * count, name, vectorizer, limit)


def _atari_game(game: str, protocol: atari.Protocol) -> gymnasium.Env[Any, Any]:
    from shoal.envs.atari_game import AtariGame

    return AtariGame(game, protocol)


def _vector_options(registered: registration.EnvSpec) -> list[str]:
    entry = registered.vector_entry_point
    if entry is None:
        return []
    return list(parameters_of(registration.load_env_creator(entry) if isinstance(entry, str) else entry))


def _make_registered(registered: registration.EnvSpec, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        made = gymnasium.make(registered, **options)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):
            raise
        raise UserError(f"{registered.id} cannot be made: {error}") from error  # what has moved to another package
    except TypeError as error:
        if _UNKNOWN_OPTION not in str(error):
            raise
        raise UserError(unknown_option(registered.id, _key_of(error, options), _known_options(registered))) from error
    check.check_spaces(registered.id, made, "observation_space", "action_space")
    return made


def _maker(registered: registration.EnvSpec) -> Callable[..., Any]:
    entry = registered.entry_point if registered.entry_point is not None else registered.vector_entry_point
    return registration.load_env_creator(entry) if isinstance(entry, str) else entry  # type: ignore[return-value]


def _known_options(registered: registration.EnvSpec) -> list[str]:
    """Those of the class and of the classes that it hands what it does not know."""
    classes = getattr(_maker(registered), "__mro__", (_maker(registered),))
    named = [name for each in classes if each is not object for name in parameters_of(each)]
    return [name for name in dict.fromkeys(named) if name not in ("self", "args", "kwargs")]


def _key_of(error: TypeError, options: Mapping[str, Any]) -> str:
    return next((key for key in options if f"'{key}'" in str(error)), ", ".join(options))


def _native(
    registered: registration.EnvSpec, count: int, options: dict[str, Any], insist: bool
) -> VectorEnvLike | None:
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
        return _checked_vector(registered.id, vector, count)
    vector.close()
    return None


# The user's factories


def _vector_of_factory(
    name: str,
    factory: Callable[..., Any],
    count: int,
    seed: int,
    options: dict[str, Any],
    vectorizer: Vectorizer,
    limit: int | None,
    device: str,
    registered: registration.EnvSpec | None = None,
) -> VectorEnvLike:
    parameters = parameters_of(factory)
    if "device" in parameters:
        options = {"device": device} | options
    seeds = spread(seed, count)
    counted = next((parameter for parameter in COUNTS if parameter in parameters), None)

    def one(number: int) -> Any:
        extra = {"seed": seeds[number]} if "seed" in parameters else {}
        return factory(**extra | options)

    if counted is not None:
        if vectorizer in ("sync", "async"):
            raise UserError(f"{name} makes a vector of environments itself; leave the vectorizer at 'auto'.")
        options = {counted: count} | options
    check_options(name, factory, options)
    _check_call(name, factory, {**options, **({"seed": seed} if "seed" in parameters else {})})
    if counted is None and vectorizer == "async":  # each is made in its own process, and none here
        return _one_by_one([partial(_make_own, one, number, name) for number in range(count)], name, "async", limit)
    first = one(0)
    if (tensors := as_tensors(first)) is not None:
        from shoal.envs.hosted import OnHost  # which needs torch

        return OnHost(_checked_count(name, tensors, count), name, registered)
    if isinstance(first, VectorEnv):
        return _checked_vector(name, first, count)
    if counted is not None:
        raise UserError(f"{name} takes '{counted}' but returned {_type_of(first)}; return a VectorEnv of that many.")
    if vectorizer == "native":
        raise UserError(f"{name} makes single environments; leave the vectorizer at 'auto' or choose 'sync'.")
    made = [first]  # the one that was made to see what the factory returns is the first of the vector

    def make_again(number: int) -> Any:
        return made.pop() if made and number == 0 else one(number)

    return _one_by_one(
        [partial(_make_own, make_again, number, name) for number in range(count)], name, vectorizer, limit
    )


def _make_own(make_one: Callable[[int], Any], number: int, name: str) -> gymnasium.Env[Any, Any]:
    return _as_gymnasium(make_one(number), name)


def _checked_vector(name: str, vector: Any, count: int) -> VectorEnvLike:
    _checked_count(name, vector, count)
    mode = vector.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        raise UserError(
            f"{name} returned a vector environment whose metadata['autoreset_mode'] is {mode}; "
            "it must be gymnasium.vector.AutoresetMode.NEXT_STEP."
        )
    return vector  # type: ignore[no-any-return]


def _checked_count(name: str, vector: Any, count: int) -> Any:
    check.check_spaces(name, vector, "single_observation_space", "single_action_space")
    found = getattr(vector, "num_envs", None)
    if found != count:
        raise UserError(
            f"{name} returned a vector of {found} environments where {count} were asked for; "
            "let the factory take a 'count' argument."
        )
    return vector


def _as_gymnasium(environment: Any, name: str) -> gymnasium.Env[Any, Any]:
    check.refuse_several_agents(name, environment)
    if isinstance(environment, gymnasium.Env):
        check.check_spaces(name, environment, "observation_space", "action_space")
        return environment
    dm_env = sys.modules.get("dm_env")  # whoever made such an environment has imported it
    if dm_env is not None and isinstance(environment, dm_env.Environment):
        from shoal.envs.dm import FromDmEnv

        return FromDmEnv(environment, name)
    if any(base.__module__.partition(".")[0] == "gym" for base in type(environment).__mro__):
        raise UserError(f"{name} returned {_type_of(environment)}, an environment of gym; {check.OLD_GYM}.")
    raise UserError(
        f"{name} returned {_type_of(environment)}; it must return a gymnasium.Env, a dm_env.Environment, "
        "or, when it takes 'count', a gymnasium.vector.VectorEnv."
    )


def _type_of(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _check_call(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some built-in callables do not tell their parameters
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        raise UserError(
            f"{name} cannot be called with the options {options}: {error}; give the environment the options it takes, "
            "or name a function that makes it with all it needs."
        ) from error
