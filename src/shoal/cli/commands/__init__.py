"""Commands of `shoal`, a module each: `run(words)` does it and returns the exit code, `OPTIONS` are what it takes.

A module is imported when its command is called; what is heavy is imported inside `run`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

NAMES = (
    "bench",
    "compare",
    "config",
    "diff",
    "doctor",
    "eval",
    "export",
    "plot",
    "record",
    "runs",
    "scale",
    "status",
    "sweep",
    "verify",
)
TAKE_ALGORITHM = ("verify", "bench throughput", "bench limits")  # and its options, beside their own


def run(name: str, words: Sequence[str]) -> int:
    code: int = importlib.import_module(f"shoal.cli.commands.{name}").run(words)
    return code


def options() -> dict[str, list[type[Any]]]:
    """The dataclasses whose fields are options, by command: for completion. A module with commands of two words has
    them by their second."""
    found: dict[str, list[type[Any]]] = {}
    for name in NAMES:
        owners = importlib.import_module(f"shoal.cli.commands.{name}").OPTIONS
        if isinstance(owners, dict):
            found |= {f"{name} {second}": [owner] for second, owner in owners.items()}
        else:
            found[name] = list(owners)
    return found
