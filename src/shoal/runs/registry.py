"""The algorithms that can be named: the files of `shoal.algorithms`, and the user's own copies of them."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import shoal.algorithms
from shoal.errors import UserError, did_you_mean
from shoal.factories import load_module
from shoal.options import Acting

if TYPE_CHECKING:  # which would take seconds to import
    from shoal.acting import Policy
    from shoal.envs import EnvSpec
    from shoal.loops.wiring import Settings
    from shoal.nets.building import Spaces
    from shoal.program import Program


class Algorithm(Protocol):
    """What a file of `shoal.algorithms` holds. The first line of its docstring describes it."""

    Config: type[Acting]
    PRESETS: Mapping[str, Mapping[str, Any]]  # by kind of environment

    def make_policy(self, cfg: Acting, env: Spaces, seed: int, greedy: bool = False) -> Policy: ...
    def program(self, cfg: Acting, env: EnvSpec, settings: Settings) -> Program: ...


def names() -> list[str]:
    """The algorithms that come with Shoal."""
    found = pkgutil.iter_modules(shoal.algorithms.__path__)
    return sorted(module.name for module in found if not module.name.startswith("_"))


def description(name: str) -> str:
    """An algorithm's one line, read from its file: importing it would take seconds."""
    path = Path(shoal.algorithms.__path__[0]) / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def is_own(name: str) -> bool:
    """Whether this names the user's own algorithm: a file (`my_impala.py`) or a dotted module (`package.my_impala`)."""
    return name.endswith(".py") or "." in name


def check_name(name: str) -> None:
    """Refuse a name that is neither an algorithm of Shoal nor shaped like one of the user's, without importing."""
    if is_own(name):
        if name.endswith(".py") and not Path(name).is_file():
            raise UserError(f"There is no file {name}: name one of {', '.join(names())}, or your own algorithm's file.")
    elif name not in names():
        raise UserError(
            f"There is no algorithm {name}: choose one of {', '.join(names())}, or name your own copy as a file "
            f"(my_{names()[0]}.py).{did_you_mean(name, names())}"
        )


def load(name: str) -> Algorithm:
    """The algorithm's module."""
    check_name(name)
    if not is_own(name):
        return cast(Algorithm, importlib.import_module(f"shoal.algorithms.{name}"))
    if name.endswith(".py"):
        path = Path(name).resolve()
        folder, module_name = str(path.parent), path.stem
    else:
        folder, module_name = os.getcwd(), name
    module = load_module(module_name, folder, f"The algorithm {name}")
    if name.endswith(".py") and Path(module.__file__ or "").resolve() != path:
        raise UserError(f"{name} has the name of the module {module.__file__}: give the file another name.")
    return _checked(module, name)


def _checked(module: ModuleType, name: str) -> Algorithm:
    missing = [part for part in ("Config", "PRESETS", "make_policy", "program") if not hasattr(module, part)]
    start = "start from a copy of algorithms/impala.py."
    if missing:
        raise UserError(f"{name} is not an algorithm, it lacks {', '.join(missing)}: {start}")
    if not (isinstance(module.Config, type) and issubclass(module.Config, Acting)):
        raise UserError(f"{name} is not an algorithm, its Config is not composed of shoal.options.Acting: {start}")
    names = [field.name for field in dataclasses.fields(module.Config)]
    if not isinstance(module.PRESETS, Mapping):
        raise UserError(f"{name} is not an algorithm, its PRESETS are no dictionary by kind of environment: {start}")
    for kind, preset in module.PRESETS.items():
        for key in preset:
            if key not in names:
                raise UserError(f"{name} sets {key!r} in its preset {kind!r}, and its Config has no such field.")
    return cast(Algorithm, module)


def of_config(config: object) -> tuple[str, Algorithm]:
    """The name and the module of the algorithm a config belongs to: where its class is defined."""
    if not isinstance(config, Acting):
        shown = f"the class {config.__qualname__}" if isinstance(config, type) else repr(config)
        raise UserError(
            f"train() needs an algorithm's config, such as impala.Config(), or a file's name that ends in .toml, and "
            f"was given {shown}."
        )
    module = sys.modules[type(config).__module__]
    package, _, last = module.__name__.rpartition(".")
    if package == shoal.algorithms.__name__:
        return last, cast(Algorithm, module)
    name = module.__name__
    if not package and module.__file__:  # a name without a dot would be taken for one of Shoal's
        name = str(Path(module.__file__).resolve())
    return name, _checked(module, name)


def lasting_name(name: str) -> str:
    """The name under which an algorithm is found again from another working directory."""
    return str(Path(name).resolve()) if name.endswith(".py") else name


def short_name(name: str) -> str:
    """The name as it is shown and used in a run directory's: without folders and packages."""
    return name.removesuffix(".py").replace("/", ".").rpartition(".")[2]
