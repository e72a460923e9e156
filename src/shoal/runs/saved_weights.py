"""Weights in files: of a run, of its best checkpoint, of one checkpoint's folder; and whether they fit a policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.checkpoints import Checkpoint, Checkpoints
from shoal.checkpoints.store import MANIFEST, open_checkpoint
from shoal.errors import UserError
from shoal.runs import directory
from shoal.runs.ended_weights import read_summary
from shoal.types import Arrays

BEST = ":best"
SHOWN = 3  # faults of weights that are told


class Found(NamedTuple):
    weights: Arrays
    place: Path  # of the file or the checkpoint
    run: Path
    order: tuple[int, float] = (0, 0)  # larger for what is newer, of one run and one way to name it
    updates: int | None = None  # of the learner, where they are recorded
    complaints: Sequence[str] = ()  # a sentence for each newer checkpoint that is damaged


def find_weights(source: str, asked: str = "") -> Found:
    """Of RUN, RUN:best, or the folder of one checkpoint. `asked` is how the user named it, for sentences."""
    asked = asked or source
    best = source.endswith(BEST) and not Path(source).is_dir()  # which may be a run's own name
    path = Path(source.removesuffix(BEST) if best else source)
    if (path / MANIFEST).is_file() and (path / "rows").is_file():
        raise UserError(f"{asked} is a dataset: give the folder of a run, which shoal runs lists.")
    if (path / MANIFEST).is_file():
        if best:
            raise UserError(f"{asked} names one checkpoint: leave out {BEST}, or give its run's folder.")
        return _of_checkpoint(open_checkpoint(path), asked, path.absolute().parent.parent)
    directory.read_config(path)  # says what is wrong where this is no run
    if not best:
        return _newest(path)
    found, complaints = Checkpoints(path / directory.CHECKPOINTS).best()
    if found is None:
        why = complaints[0] if complaints else "it has evaluated none before a checkpoint."
        raise UserError(f"{asked} cannot be used: {why}")
    return _of_checkpoint(found, asked, path, complaints)


def _of_checkpoint(found: Checkpoint, asked: str, run: Path, complaints: Sequence[str] = ()) -> Found:
    if "weights" not in found.parts:
        raise UserError(f"{asked} cannot be used: {found.path} holds no weights.")
    return Found(found.part("weights"), found.path, run, (0, _number(found)), _updates(found.meta), complaints)


def _newest(run: Path) -> Found:
    """The last weights of a run: within a life its checkpoints, in their order, and then what it has ended with."""
    saved = directory.newest_weights(run)
    life = int(directory.read_config(run).get("life", 0))
    order: tuple[int, float]
    if saved.checkpoint is not None:
        order = life, _number(saved.checkpoint)
        return Found(saved.weights, saved.place, run, order, _updates(saved.checkpoint.meta), saved.complaints)
    summary = read_summary(run)
    ended = summary.get("life")
    order = (ended if isinstance(ended, int) else life), math.inf
    return Found(saved.weights, saved.place, run, order, _updates({"updates": summary.get("saved_version")}))


def _number(found: Checkpoint) -> int:
    digits = found.path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _updates(meta: Mapping[str, Any]) -> int | None:
    updates = meta.get("updates")
    return updates if isinstance(updates, int) else None


def load_checked(policy: Any, weights: Arrays, path: Path) -> None:
    """Load weights that have the names, shapes and dtypes of the policy's own, and are finite; refuse others."""
    broken = [name for name, value in weights.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if broken:
        raise UserError(
            f"{path} holds numbers that are not finite, in {_listed(broken)}: the run diverged or the file is damaged."
        )
    expected = policy.state_dict()["weights"] if hasattr(policy, "state_dict") else None
    faults = [] if expected is None else _misfits(weights, expected)
    if faults:
        raise UserError(
            f"{path} does not fit the network that the run's config builds: {_listed(faults)}. Has its code changed?"
        )
    try:
        policy.load(weights)
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"{path} does not fit the network that the run's config builds ({error}).") from None


def _misfits(weights: Arrays, expected: Arrays) -> list[str]:
    faults = [f"it lacks {name} {list(value.shape)}" for name, value in expected.items() if name not in weights]
    for name, value in weights.items():
        if name not in expected:
            faults.append(f"it has {name} {list(value.shape)}, which the network has not")
        elif value.shape != expected[name].shape:
            faults.append(f"{name} is {list(value.shape)} and must be {list(expected[name].shape)}")
        elif value.dtype != expected[name].dtype:
            faults.append(f"{name} is {value.dtype} and must be {expected[name].dtype}")
    return faults


def _listed(parts: list[str]) -> str:
    more = len(parts) - SHOWN
    return ", ".join(parts[:SHOWN]) + (f" and {more} more" if more > 0 else "")
