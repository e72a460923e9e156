"""Which environment a name means: a Gymnasium id, or the user's `module:factory`."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs import registration

from shoal.errors import UserError

_EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "dm_env": "dm"}  # what brings a missing module


def resolve(spec: str) -> registration.EnvSpec | Callable[..., Any]:
    """The registered environment, or the factory that `module:factory` names."""
    module_name, colon, name = spec.rpartition(":")
    if not colon:
        if spec.startswith("ALE/"):
            _import_atari(spec)
        return _registered(spec, spec)
    if not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"'{spec}' is no module:factory; write for example my_folder.my_module:make_env.")
    module = _import(module_name, spec)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is not None:
        raise UserError(f"{spec}: '{name}' is {type(found).__name__}, not a function that makes an environment.")
    if name in gymnasium.registry or not name.isidentifier():
        return _registered(name, spec)
    raise UserError(f"{spec}: the module '{module_name}' has no '{name}'.{_did_you_mean(name, list(vars(module)))}")


def _registered(name: str, spec: str) -> registration.EnvSpec:
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    try:
        namespace, bare, version = registration.parse_env_id(name)
        latest = registration.find_highest_version(namespace, bare) if version is None else None
    except gymnasium.error.Error:  # not even shaped like an id
        latest = None
    if latest is not None:
        return gymnasium.registry[registration.get_env_id(namespace, bare, latest)]
    remedy = _did_you_mean(name, list(gymnasium.registry)) or (
        " Name a Gymnasium id such as CartPole-v1, or your own factory as module:factory."
    )
    raise UserError(f"There is no environment {spec}.{remedy}")


def _did_you_mean(name: str, candidates: list[str]) -> str:
    by_lower_case = {candidate.lower(): candidate for candidate in candidates if not candidate.startswith("__")}
    close = [by_lower_case[match] for match in difflib.get_close_matches(name.lower(), by_lower_case, n=3, cutoff=0.6)]
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _import_atari(spec: str) -> None:
    try:
        importlib.import_module("ale_py")  # registers the ALE/ ids
    except ModuleNotFoundError as error:
        raise UserError(missing_package(spec, error)) from error


def _import(name: str, spec: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(
                f"{spec}: there is no module '{error.name}'; run the command in the folder that holds it or install it."
            ) from error
        raise UserError(missing_package(spec, error)) from error


def missing_package(spec: str, error: Exception) -> str:
    """One sentence that says what to install."""
    cause = error if isinstance(error, ImportError) else error.__cause__  # Gymnasium's own error hides the name
    module = cause.name if isinstance(cause, ImportError) and cause.name else ""
    extra = _EXTRAS.get(module.partition(".")[0])
    if extra:
        return f"{spec} needs packages that are not installed; run: pip install 'shoal[{extra}]'"
    return f"{spec} needs a package that is not installed: {error}"
