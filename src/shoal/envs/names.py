"""Which environment is meant: a Gymnasium id, the user's `module:factory`, or a function or class itself."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs import registration

from shoal.envs.faults import what_was_raised
from shoal.errors import UserError, did_you_mean

Environment = str | Callable[..., Any]

_EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "dm_env": "dm", "envpool": "envpool"} | {
    "dm_control": "dm-control",  # what brings a missing module
    "shimmy": "dm-control",
}
_ATARI = re.compile(r"ALE/.*|.*NoFrameskip-v[04]")  # ids that are nothing else
_KNOWN_EVERYWHERE = ("gymnasium", "ale_py", "shoal")  # whose ids every process knows or can look up


def is_users_code(env: Environment) -> bool:
    """Whether making it runs code of the user's, as opposed to an installed package that registers its environments."""
    return not isinstance(env, str) or ":" in env


def resolve(env: Environment) -> registration.EnvSpec | Callable[..., Any]:
    """The registered environment, or the factory that was given or that `module:factory` names."""
    if not isinstance(env, str):
        if callable(env):
            return env
        hint = "an environment itself" if hasattr(env, "reset") and hasattr(env, "step") else repr(env)
        raise UserError(
            f"env is {hint}; give a Gymnasium id, a module:factory, or a function or class that makes environments."
        )
    module_name, colon, name = env.rpartition(":")
    if not colon:
        if env not in gymnasium.registry and (_ATARI.fullmatch(env) or "ale_py" not in sys.modules):
            _import_atari(env)
        return _registered(env, env)
    if not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"'{env}' is no module:factory; write for example my_folder.my_module:make_env.")
    if module_name in ("gymnax", "brax"):  # which import JAX: not here, where a process may be forked
        from shoal.envs import jax_vectors

        return getattr(jax_vectors, f"{module_name}_factory")(name)  # type: ignore[no-any-return]
    module = _import(module_name, env)
    if module_name == "envpool":
        from shoal.envs import pool  # which needs this module

        return pool.factory(name)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is not None:
        raise UserError(f"{env}: '{name}' is {type(found).__name__}, not a function that makes an environment.")
    if name in gymnasium.registry or not name.isidentifier():
        return _registered(name, env)
    raise UserError(f"{env}: the module '{module_name}' has no '{name}'.{did_you_mean(name, list(vars(module)))}")


def registered_by_user(env: Environment) -> registration.EnvSpec | None:
    """The registration of an id that another process would not know, since the user's program or a package that it has
    imported made it."""
    found = gymnasium.registry.get(env) if isinstance(env, str) else None
    if found is None:
        return None
    entry = found.entry_point or found.vector_entry_point
    known = isinstance(entry, str) and entry.partition(".")[0] in _KNOWN_EVERYWHERE
    return None if known else found


def know(registered: registration.EnvSpec | None) -> None:
    """Register here what the user registered elsewhere."""
    if registered is not None:
        gymnasium.registry.setdefault(registered.id, registered)


def _registered(name: str, env: str) -> registration.EnvSpec:
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    try:
        namespace, bare, version = registration.parse_env_id(name)
        latest = registration.find_highest_version(namespace, bare) if version is None else None
    except gymnasium.error.Error:  # not even shaped like an id
        latest = None
    if latest is not None:
        return gymnasium.registry[registration.get_env_id(namespace, bare, latest)]
    if name == env and name.startswith("dm_control/"):  # Shimmy's ids, which it registers when it is imported
        raise UserError(
            f"{env} is an environment of Shimmy's: --env shimmy:{env}, with pip install 'shoal[dm-control]'."
        )
    remedy = did_you_mean(name, gymnasium.registry, most=3) or (
        " Name a Gymnasium id such as CartPole-v1, or your own factory as module:factory."
    )
    raise UserError(f"There is no environment {env}.{remedy}")


def _import_atari(env: str) -> None:
    """It registers its ids, of which any that is unknown may be one."""
    try:
        importlib.import_module("ale_py")
    except ModuleNotFoundError as error:
        if _ATARI.fullmatch(env):
            raise UserError(missing_package(env, error)) from error


def _import(name: str, env: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name not in _EXTRAS and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(
                f"{env}: there is no module '{error.name}'; run the command in the folder that holds it or install it."
            ) from error
        raise UserError(missing_package(env, error)) from error
    except SyntaxError as error:
        place = f"{Path(error.filename or name).name}, line {error.lineno}"
        raise UserError(f"{env}: the module '{name}' is not valid Python: {error.msg} ({place}).") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{env}: the module '{name}' could not be imported: {what_was_raised(error)}.") from error


def missing_package(env: str, error: Exception) -> str:
    """One sentence that says what to install."""
    cause = error if isinstance(error, ImportError) else error.__cause__  # Gymnasium's own error hides the name
    module = cause.name if isinstance(cause, ImportError) and cause.name else ""
    extra = _EXTRAS.get(module.partition(".")[0])
    if extra:
        return f"{env} needs packages that are not installed; run: pip install 'shoal[{extra}]'"
    return f"{env} needs a package that is not installed: {error}"
