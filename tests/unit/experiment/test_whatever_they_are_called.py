"""Who restores and revives a program's nodes finds them by role, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.experiment.restoring import Restored
from shoal.experiment.reviving import Reviving
from shoal.program import Program
from shoal.runtime.restarts import Supervisor
from shoal.services.metrics import UPDATES, Metrics
from shoal.types import Role

COUNTED = {"counts": {"learner_steps": 7.0, "env_steps": 9.0}, "values": {}, "notes": []}


def named(role: Role) -> Program:
    program = Program()
    program.add("numbers", Metrics)
    program.group("teachers", role).add("teacher", object)
    return program


def test_old_weights_and_counts_go_to_the_learner_and_the_metrics() -> None:
    for role in (Role.LEARNER, Role.PUBLISHER):
        program = named(role)
        Restored({"w": np.ones(2)}, partial=False, lines=[], updates=7, metrics=COUNTED).start(program)
        assert program.nodes["teacher"].start["updates"] == 7
        numbers = program.nodes["numbers"].start
        assert (numbers["counts"], numbers["lives"][UPDATES][1]) == ({"env_steps": 9.0}, {"learner_steps": 7.0})


def test_lost_metrics_and_learners_have_a_state_to_come_back_with(tmp_path: Path) -> None:
    program, supervisor = named(Role.LEARNER), Supervisor()
    program.start_from("numbers", COUNTED)
    Reviving(program, tmp_path, {}, print).attach(supervisor)
    assert {*supervisor.states} == {"numbers", "teacher"}
    assert supervisor.states["numbers"]() == COUNTED
