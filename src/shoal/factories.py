"""The user's own functions and classes, given themselves or named `module:factory`: found here, and again elsewhere."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import UserError

Factory = str | Callable[..., Any]
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def load_factory(factory: Factory, what: str = "network") -> Callable[..., Any]:
    """The function itself, or the one named by `module:factory`; modules in the working directory are found."""
    if callable(factory):
        return factory
    if not isinstance(factory, str):
        raise UserError(f"The {what} is {factory!r}: give module:factory, or a function or class.")
    module_name, _, name = factory.partition(":")
    if not module_name or not name:
        raise UserError(f"The {what} {factory!r} must be written module:factory.")
    module = load_module(module_name, os.getcwd(), f"The {what} {factory!r}")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UserError(f"The {what} {factory!r}: the module {module_name!r} has no function {name!r}.")
    return found  # type: ignore[no-any-return]


def load_module(name: str, folder: str, what: str) -> ModuleType:
    """A module of the folder or of the Python path; one sentence that begins with `what` where it cannot be had."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{what}: there is no module {error.name!r}; run the command in its folder, or install it."
            ) from error
        raise UserError(f"{what} needs the module {error.name!r}, which is not installed{_place(error)}.") from error
    except SyntaxError as error:
        where = f"{Path(error.filename or name).name}, line {error.lineno}"
        raise UserError(f"{what}: {name!r} is not valid Python: {error.msg} ({where}).") from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".: ")
        raise UserError(f"{what}: {name!r} could not be imported: {said}{_place(error)}.") from error


def _place(error: BaseException) -> str:
    """The innermost place in the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not frame.filename.startswith((*_INSTALLED, __file__))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


# ---- in a run directory ----------------------------------------------------------------------------------------------


def importable_name(factory: Factory) -> str | None:
    """`module:factory`, under which another process finds the same; None where there is no such name, as for what is
    defined in a notebook, in the program that is run, or inside a function."""
    if isinstance(factory, str):
        return factory
    module_name, path = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if module_name in (None, "__main__") or path is None:
        return None
    found: Any = sys.modules.get(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{path}" if found is factory else None


def folder_of(module_name: str) -> str | None:
    """The folder from which a module of the user's own was imported; None for what is installed or not imported."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if file is None or not os.path.isabs(file) or file.startswith(_INSTALLED):  # torch.ops gives a name alone
        return None
    path = Path(file).resolve()
    depth = module_name.count(".") + (path.stem == "__init__")
    return str(path.parents[depth])


def look_in(folders: Iterable[str]) -> None:
    """Let modules be found in folders that a run has recorded, before those of the working directory."""
    for folder in folders:
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.insert(0, folder)
