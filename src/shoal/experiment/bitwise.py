"""Comparing two runs bit by bit by their checkpoints, and saying in the user's words what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.checkpoints import Checkpoint, Checkpoints
from shoal.experiment.exact import part_of
from shoal.experiment.replay_saves import REPLAY, folder_of
from shoal.program import Node, Program
from shoal.replay import Replay
from shoal.runs import directory
from shoal.types import Role

KINDS = ("environments", "random generators", "replay", "parameters", "optimizer", "evaluations", "everything else")
NOT_COMPARED = (".values.", ".train_seconds.", ".life.")  # measurements of reports, and names drawn at random


@dataclass(frozen=True, order=True)
class Difference:
    """Something that is not the same in two runs. The order is that of causes: what is nearer to one comes first."""

    rank: int
    words: str  # for the user
    kind: str  # of KINDS


def differences(one: Checkpoint, other: Checkpoint, runs: tuple[Path, Path], program: Program) -> list[Difference]:
    """What differs between two checkpoints of runs of the same program, likely causes first."""
    nodes = {part_of(node): node for node in program.nodes.values()}
    found = [
        _difference(nodes.get(part), part, place)
        for part in sorted({*one.parts, *other.parts})
        for place in _unequal(_part(one, part), _part(other, part), "")
    ]
    for node in sorted({*one.meta.get(REPLAY, {}), *other.meta.get(REPLAY, {})}):
        left, right = (_tables(program, node, run, checkpoint) for run, checkpoint in zip(runs, (one, other)))
        found += [_of_replay(place) for place in _unequal(left, right, "")]
    return sorted(set(found))


def evaluations(run: Path) -> list[dict[str, Any]]:
    return directory.read_rows(run, "evaluation")


def cannot_be_saved(checkpoint: Checkpoint) -> str | None:
    """Why the environments are not part of a checkpoint, if they are not."""
    for part in checkpoint.parts:
        state = checkpoint.part(part)
        for place in (state.get("environments"), state.get("exact")) if isinstance(state, dict) else ():
            if isinstance(place, dict) and "why" in place:
                return str(place["why"])
    return None


def checkpoints_by_updates(run: Path) -> dict[int, Checkpoint]:
    """Those of a run that are numbered, by their updates; of several the first."""
    found: dict[int, Checkpoint] = {}
    for checkpoint in Checkpoints(run / directory.CHECKPOINTS).all():
        found.setdefault(checkpoint.meta["updates"], checkpoint)
    return found


# ---- values


def _part(checkpoint: Checkpoint, part: str) -> Any:
    return checkpoint.part(part) if part in checkpoint.parts else None


def _unequal(one: Any, other: Any, place: str) -> Iterator[str]:
    """The places at which two nested states differ."""
    if any(skipped in f"{place}." for skipped in NOT_COMPARED):
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted({*one, *other}, key=str):
            yield from _unequal(one.get(name, _ABSENT), other.get(name, _ABSENT), f"{place}.{name}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other)):
            yield from _unequal(left, right, f"{place}.{index}")
    elif not _same(one, other):
        yield place


_ABSENT = object()


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        one, other = one.cpu().numpy(), other.cpu().numpy()
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _tables(program: Program, node: str, run: Path, checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Everything that the tables of a save hold, wherever it lies in memory."""
    tag = checkpoint.meta.get(REPLAY, {}).get(node)
    if tag is None:
        return None
    replay: Replay = program.nodes[node].build(lambda callee: None)
    try:
        replay.load(folder_of(run, node), tag=tag)
        return replay.contents()
    finally:
        replay.close()


# ---- words


def _of_replay(place: str) -> Difference:
    words = {"random": "the replay's sampler", "priority": "the replay's priorities", "open": "the replay's open rows"}
    said = next((said for part, said in words.items() if f".{part}" in place), "the replay's contents")
    return Difference(3, f"{said} ({place.lstrip('.')})", "replay")


PLAYS = (Role.ACTOR, Role.WORKER, Role.EVALUATOR)


def _difference(owner: Node | None, part: str, place: str) -> Difference:
    """Of a part of a checkpoint that belongs to a node, or (None) to all."""
    tail = place.lstrip(".").removeprefix("exact.")
    role, node = (None, part) if owner is None else (owner.role, owner.name)
    if role in PLAYS and tail.startswith("environments"):
        if ".generators" in place or "np_random" in place:
            return Difference(0, f"the environment's random generator ({node})", "random generators")
        return Difference(1, f"the environment's state ({node}: {_last(tail)})", "environments")
    if role is None and tail.startswith("generators"):
        return Difference(0, f"the global random generator of {tail.split('.')[1]}", "random generators")
    if role in PLAYS and "policy.random" in tail:
        return Difference(2, f"the policy's random generator ({node})", "random generators")
    if role in (*PLAYS, Role.WEIGHTS):
        if "weights" in tail or "network" in tail or role == Role.WEIGHTS:
            layer = tail.partition("weights.")[2] or tail.partition("network.")[2] or tail
            return Difference(6, f"network: layer {layer} (as {node} has it)", "parameters")
        if role == Role.EVALUATOR:
            return Difference(7, f"the evaluator: {tail}", "evaluations")
        return Difference(4, f"rows that {node} has not sent yet ({_last(tail)})", "everything else")
    if role in (Role.LEARNER, Role.PUBLISHER, Role.GRADIENTS):
        return _of_learner(tail.removeprefix("learner."))
    kind = "evaluations" if "evaluations" in tail else "everything else"
    return Difference(8, f"{node}: {tail}", kind)


def _of_learner(tail: str) -> Difference:
    attribute, _, rest = tail.partition(".")
    if "optim" in attribute or attribute == "counts":
        return Difference(5, f"the optimizer: {rest or attribute}", "optimizer")
    if "target" in attribute:
        return Difference(6, f"target network: layer {rest}", "parameters")
    if "network" in attribute or attribute == "parameters":
        return Difference(5, f"network: layer {rest or 'parameters of the gradient service'}", "parameters")
    kind = "random generators" if "random" in attribute or "generator" in attribute else "everything else"
    return Difference(2 if kind.startswith("random") else 7, f"the learner's {tail}", kind)


def _last(tail: str) -> str:
    return tail.rpartition(".plain.")[2] if ".plain." in tail else tail
