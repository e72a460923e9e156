"""Functions of the user's that options name as `module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from shoal.errors import UserError


def load_factory(path: str, what: str = "network") -> Callable[..., Any]:
    """The function named by `module:factory`; modules in the working directory are found."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"The {what} {path!r} must be written module:factory.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists and lacks something itself
        raise UserError(f"The {what} {path!r}: there is no module {error.name!r} on the Python path.") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UserError(f"The {what} {path!r}: the module {module_name!r} has no function {name!r}.")
    return factory  # type: ignore[no-any-return]
