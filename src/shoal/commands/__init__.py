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
    "status",
    "sweep",
    "verify",
)


def run(name: str, words: Sequence[str]) -> int:
    code: int = importlib.import_module(f"shoal.commands.{name}").run(words)
    return code


def options() -> dict[str, list[type[Any]]]:
    """The dataclasses whose fields are options, by command: for completion."""
    return {name: list(importlib.import_module(f"shoal.commands.{name}").OPTIONS) for name in NAMES}
