"""Versions of weights: one integer, `generation << 32 | number`.

The number is the learner's count of updates. The generation rises with every restart of the learner, so that versions
never seem to go backwards and readers accept those of a new life at once.
"""

from __future__ import annotations

from typing import TypeVar

from shoal.types import Array

Versions = TypeVar("Versions", int, Array)  # one, or many

NONE = -1  # older than every version


def make_version(generation: int, number: int) -> int:
    return generation << 32 | number


def generation(version: Versions) -> Versions:
    """The life of the learner that made it."""
    return version >> 32


def number(version: Versions) -> Versions:
    """How many updates the learner had made."""
    return version & 0xFFFFFFFF


def updates_between(acting: int, newest: int) -> int:
    """By how many updates weights that were acted with lie behind the newest ones; 0 where there were none."""
    return 0 if acting == NONE else max(0, number(newest) - number(acting))
