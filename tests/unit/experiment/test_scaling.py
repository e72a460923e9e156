"""What a running program is asked for that it cannot have: refused in a sentence, before anything is built."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.errors import UserError
from shoal.experiment import scaling as module
from shoal.experiment.scaling import GROW_EVERY, MOST_AT_ONCE, Scaling
from shoal.program import Program
from shoal.runs.requests import ask_to_scale
from shoal.types import Role


class Growing:
    def __init__(self) -> None:
        self.program = Program()
        self.program.group("actors", Role.ACTOR).add_alike("actor", 2, object)

    def add(self, *nodes: Any) -> None:
        for node in nodes:
            self.program.insert(node)


def test_more_members_than_can_be_started_at_once_are_refused_at_once(tmp_path: Path) -> None:
    run = Growing()
    told: list[str] = []
    rebuilt: list[int] = []
    scaling = Scaling(cast(Any, run), tmp_path, rebuilt.append, lambda text, row: told.append(text))
    begun = time.monotonic()
    ask_to_scale(tmp_path, {"actors": 99_999})
    assert scaling.look() is None
    assert time.monotonic() - begun < 1.0
    assert told == [
        "not scaled: actors=99999 is 99,997 more at once, and a run takes up to 200 at a time, so that it goes on: "
        "give actors=202 or less, and more after that."
    ]
    assert (rebuilt, len(run.program.nodes)) == ([], 2)
    scaling.scale("actors", 2 + MOST_AT_ONCE)
    assert len(run.program.nodes) == 2 + MOST_AT_ONCE
    with pytest.raises(UserError, match="201 more at once"):
        scaling.scale("actors", 3 + 2 * MOST_AT_ONCE)


def test_a_run_takes_what_is_free_up_to_the_most_that_was_asked_for(tmp_path: Path) -> None:
    run: Any = Growing()
    run.room = lambda: room[0]
    room = [3]
    scaling = Scaling(run, tmp_path, lambda count: count, lambda text, row: None)
    growing = module.Growing(run, scaling, most=7)
    assert growing.look(0.0) == 5
    assert growing.look(1.0) is None, "what was taken is not seen at once"
    room[0] = 0
    assert growing.look(GROW_EVERY) is None
    room[0] = 100  # a machine has joined
    assert growing.look(2 * GROW_EVERY) == 7
    assert growing.look(3 * GROW_EVERY) is None
    assert len(run.program.nodes) == 7
    assert module.Growing(run, scaling, most=None).look(0.0) is None
