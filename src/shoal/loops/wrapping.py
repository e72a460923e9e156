"""Something around what learns in a program: for measurements and trials of the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from shoal.loops.learner import LearnerLoop
from shoal.loops.worker import WorkerLoop
from shoal.program import Program

_PLACE: dict[Any, int] = {LearnerLoop: 0, WorkerLoop: 1}  # of the factory of learners, among a loop's arguments


def wrap_learners(program: Program, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Every factory of learners, or of workers, is replaced with what `wrap` makes of it."""
    for name, node in program.nodes.items():
        if (place := _PLACE.get(node.factory)) is not None:
            wrapped = wrap(node.args[place])
            args = (*node.args[:place], wrapped, *node.args[place + 1 :])
            program.nodes[name] = dataclasses.replace(node, args=args)
