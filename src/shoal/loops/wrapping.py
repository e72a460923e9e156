"""Something around what learns in a program: for measurements and trials of the same program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.program import Program
from shoal.types import Role

FACTORIES = {Role.LEARNER: "make_learner", Role.WORKER: "make_worker"}  # of what learns, among a loop's parameters


def wrap_learners(program: Program, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Every factory of learners, or of workers, is replaced with what `wrap` makes of it."""
    for node in program.with_role(*FACTORIES):
        program.nodes[node.name] = node.changed(FACTORIES[node.role], wrap)
