"""Checkpoints of one moment: where they can be taken, where they can be gone on from exactly, and what others take."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from shoal.experiment.checkpointing import _following, start_program
from shoal.experiment.exact import Moment, can_go_on, for_others, states_of
from shoal.program import Program
from shoal.replay import MinSize, Replay, Table, Uniform
from shoal.services.metrics import LASTING, UPDATES
from shoal.types import Role

PARTS: dict[str, Any] = {
    "metrics": {"counts": {"learner_steps": 1.0, "env_steps": 9.0}, "evaluations": 1, "exact": {"lives": {}}},
    "weights": {"w": np.ones(2)},
    "learner": {"updates": 7, "exact": {"published": 7}},
    "actor-0": {"environments": {}, "exact": {"stage": "acting"}},
    "evaluator": {"version": 3, "exact": {"next": 0.5}},
    "run": {"clock": 0.5, "version": 7},
}
META = {"exact": True, "replay": {"replay": "000004"}, "updates": 7, "evaluations": 5}


class Node:
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> None: ...


class Silent: ...


def described(*more: str, replay: bool = True) -> Program:
    program = Program()
    for name in ("metrics", "weights", "learner", "actor/0", "evaluator", *more):
        program.group(name, Role(name.partition("/")[0])).add(name, Node)
    if replay:
        program.add("replay", Replay, [Table("items", 3, sampler=Uniform(), limiter=MinSize(1))])
    return program


def test_a_run_goes_on_exactly_only_inline_and_with_the_same_nodes() -> None:
    assert can_go_on(described(), PARTS, META, "inline")
    assert not can_go_on(described(), PARTS, META, "local")
    assert not can_go_on(described(), PARTS, META | {"exact": False}, "inline")
    assert not can_go_on(described("actor/1"), PARTS, META, "inline")
    assert not can_go_on(described(), PARTS | {"actor-1": {}}, META, "inline"), "one that has no place any more"


def test_every_node_takes_its_own_part_and_a_replay_its_save(tmp_path: Path) -> None:
    states = states_of(described(), tmp_path, PARTS, META)
    assert states["actor/0"] is PARTS["actor-0"]
    assert states["run"] is PARTS["run"]
    assert states["weights"] == {"version": 7, "weights": PARTS["weights"], "snapshots": {"learner": {"updates": 7}}}
    assert states["replay"] == {"path": str(tmp_path / "replay" / "replay"), "tag": "000004"}


def test_a_run_that_goes_on_in_another_way_takes_what_a_node_can_use_by_itself() -> None:
    program = described()
    assert for_others(program, PARTS) == {
        "metrics": {"counts": {"learner_steps": 1.0, "env_steps": 9.0}, "evaluations": 1},
        "weights": PARTS["weights"],
        "learner": {"updates": 7},
        "actor-0": {"environments": {}},
    }
    assert start_program(program, PARTS, META) == 0
    started = {name: node.start for name, node in program.nodes.items()}
    counts = {"counts": {"env_steps": 9.0}, "lives": {UPDATES: [LASTING, {"learner_steps": 7.0}]}}
    assert started["metrics"] == counts | {"evaluations": 5}, "as the learner and the driver have them"
    assert started["evaluator"] is None


class Inline:
    def states(self) -> None: ...


def test_moments_are_those_of_runs_that_save_everything(tmp_path: Path) -> None:
    run = cast(Any, Inline())
    assert Moment.of(run, described(), tmp_path, saves_replay=True) is not None
    assert Moment.of(run, described(), tmp_path, saves_replay=False) is None
    assert Moment.of(run, described(replay=False), tmp_path, saves_replay=False) is not None
    assert Moment.of(cast(Any, object()), described(), tmp_path, saves_replay=True) is None
    lacking = described()
    lacking.add("mine", Silent)
    assert Moment.of(run, lacking, tmp_path, saves_replay=True) is None


@pytest.mark.parametrize(("updates", "following"), [(0, 5), (4, 5), (5, 10), (6, 10)])
def test_the_next_checkpoint_is_at_a_multiple_that_lies_ahead(updates: int, following: int) -> None:
    assert _following(updates, 5) == following
