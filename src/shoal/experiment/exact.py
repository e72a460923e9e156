"""Checkpoints of everything at one moment, on the inline runtime: a run that goes on from one goes on to the last bit.

A checkpoint changes nothing in the run of which it is taken. See decision 0029.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.experiment.replay_saves import REPLAY, folder_of, replay_nodes
from shoal.loops.learner import LEARNER
from shoal.loops.loop import without_exact
from shoal.program import Handle, Node, Program, offers
from shoal.runtime import Run
from shoal.runtime.inline import SHARED
from shoal.types import MAIN, Role

EXACT = "exact"  # in a checkpoint's meta: it is of one moment, and whole

METRICS, WEIGHTS = "metrics", "weights"  # parts of checkpoints that are read whatever the nodes are called

States = dict[str, Any]


def part_of(node: Node) -> str:
    """What a checkpoint calls the part of a node."""
    named = {Role.METRICS: METRICS, Role.WEIGHTS: WEIGHTS} if node.policy == MAIN else {}
    return named.get(node.role, node.name.replace("/", "-"))


def leader(program: Program) -> Handle:
    """Who knows how far the main policy has come."""
    found = program.find(Role.LEARNER) or program.find(Role.PUBLISHER)
    assert found is not None, "somebody learns"
    return found


def gives_no_state(program: Program) -> list[str]:
    """The nodes that cannot be part of such a checkpoint."""
    kinds = {name: node.factory for name, node in program.nodes.items() if name not in replay_nodes(program)}

    return [
        name for name, kind in kinds.items() if not (offers(kind, "state_dict") and offers(kind, "load_state_dict"))
    ]


class Moment:
    """Takes the states of all nodes of a run at one moment."""

    def __init__(self, run: Any, program: Program, run_directory: Path) -> None:
        self._run, self._directory = run, run_directory
        self._program, self._replays = program, replay_nodes(program)

    @staticmethod
    def of(run: Run, program: Program, run_directory: Path, saves_replay: bool) -> Moment | None:
        """Where it can be done: on the inline runtime, with nodes that all give their state."""
        whole = not gives_no_state(program) and (saves_replay or not replay_nodes(program))
        return Moment(run, program, run_directory) if hasattr(run, "states") and whole else None

    def still(self, ended: bool = False) -> bool:
        """Whether now is one; also where nodes have `ended`."""
        return bool(self._run.still(ended))

    def updates(self) -> int:
        learner = self._run.target(leader(self._program).name)
        return 0 if learner is None else int(learner.updates)

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        self._run.wait(seconds, until)

    def take(self, tag: str, keep: Collection[str]) -> tuple[States, dict[str, Any]]:
        """The states of all nodes, and what a checkpoint's meta says of them. Replays save themselves."""

        def ask(name: str, node: Any) -> Any:
            if name in self._replays:
                return node.save(str(folder_of(self._directory, name)), tag=tag, keep=keep)
            return node.state_dict("exact")

        states = self._run.states(ask)
        saves = {name: tag for name in self._replays if states.pop(name) is not None}
        if (store := self._program.find(Role.WEIGHTS)) is not None:
            weights = states[store.name]
            states[SHARED]["version"] = weights["version"]
            states[store.name] = (weights["version"], weights["weights"])  # as others publish it
        return states, {EXACT: True, REPLAY: saves}


def can_go_on(program: Program, parts: Mapping[str, Any], meta: Mapping[str, Any], runtime: str) -> bool:
    """Whether a program can go on exactly where a checkpoint was taken: it has the same nodes."""
    if not meta.get(EXACT) or runtime != "inline":
        return False
    nodes = {part_of(node) for name, node in program.nodes.items() if name not in replay_nodes(program)}
    return {*parts} - {SHARED} == nodes


def states_of(program: Program, run: Path, parts: Mapping[str, Any], meta: Mapping[str, Any]) -> States:
    """The states of a program's nodes, out of the parts of a checkpoint. Weights and gradient services
    have theirs from the beginning: no actor or worker is made before there are parameters."""
    if not isinstance(shared := parts.get(SHARED), Mapping) or "version" not in shared:
        raise UserError(f"The newest checkpoint of {run} is damaged: it lacks what its nodes share; remove its folder.")
    states = {name: parts[part_of(node)] for name, node in program.nodes.items() if name not in replay_nodes(program)}
    if (store := program.find(Role.WEIGHTS)) is not None:
        learner = without_exact(states[leader(program).name])
        states[store.name] = {
            "version": shared["version"],
            "weights": parts[WEIGHTS],
            "snapshots": {LEARNER: learner} if learner else {},  # for the learner's next life
        }
    for node in program.with_role(Role.WEIGHTS, Role.GRADIENTS):
        program.start_from(node.name, states[node.name])
    for node, tag in meta[REPLAY].items():
        states[node] = {"path": str(folder_of(run, node)), "tag": tag}
    return states | {SHARED: shared}


def for_others(program: Program, parts: Mapping[str, Any]) -> States:
    """The parts for a run that goes on in another way: without what only all of them together can use, and without
    what was judged."""
    left_out = {SHARED, *(part_of(node) for node in program.with_role(Role.EVALUATOR))}
    kept = {name: part for name, part in parts.items() if name not in left_out}
    plain = {name: part if name == WEIGHTS else without_exact(part) for name, part in kept.items()}
    return {name: part for name, part in plain.items() if part}
