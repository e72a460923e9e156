"""The user's own modules, and the functions in them that options name as `module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from shoal.errors import UserError


def load_module(name: str, folder: str, missing: str) -> ModuleType:
    """A module of the folder or of the Python path; where there is none, the sentence `missing` about its name."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists and lacks something itself
        raise UserError(missing.format(error.name)) from error


def load_factory(path: str, what: str = "network") -> Callable[..., Any]:
    """The function named by `module:factory`; modules in the working directory are found."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"The {what} {path!r} must be written module:factory.")
    module = load_module(
        module_name, os.getcwd(), f"The {what} {path!r}: there is no module {{!r}} on the Python path."
    )
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UserError(f"The {what} {path!r}: the module {module_name!r} has no function {name!r}.")
    return factory  # type: ignore[no-any-return]
