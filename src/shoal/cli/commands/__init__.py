"""Commands of `shoal`, by what they are about: `COMMANDS` of a module says what runs each, and which options it takes.

A module is imported when one of its commands is called; what is heavy is imported inside of the command.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.cli.commands.common import Commands

MODULES = {
    "bench": ("bench",),
    "data": ("data",),
    "doctor": ("doctor",),
    "looking": ("compare", "config", "diff", "plot", "runs", "status"),
    "plan": ("plan",),
    "policies": ("collect", "eval", "export", "judge", "record"),
    "scale": ("scale",),
    "serve": ("serve",),
    "sweep": ("sweep",),
    "verify": ("verify",),
}
NAMES = tuple(sorted(name for names in MODULES.values() for name in names))
# that take an algorithm and its options, beside their own
TAKE_ALGORITHM = ("verify", "plan", "bench throughput", "bench limits", "bench update")


def run(name: str, words: Sequence[str]) -> int:
    (module,) = (module for module, names in MODULES.items() if name in names)
    return _of(module)[name][0](words)


def options() -> dict[str, list[type[Any]]]:
    """The dataclasses whose fields are options, by command of one or two words: for completion."""
    found = {name: list(owners) for module in MODULES for name, (_, owners) in _of(module).items() if owners}
    return dict(sorted(found.items()))


def _of(module: str) -> Commands:
    commands: Commands = importlib.import_module(f"shoal.cli.commands.{module}").COMMANDS
    return commands
