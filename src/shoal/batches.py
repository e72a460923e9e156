"""Batches as learners see them: tensors on the learner's device, observations nested as their space.

Beside the columns that are stored, a batch of time slices has "state", the recurrent state from before its first row,
and "first", which says where episodes begin: the one place where that is worked out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import tree
from shoal.types import Array, Arrays

Batch = dict[str, Any]  # tensors by name; under "observation", "next_observation" and "state" trees of tensors
OBSERVATIONS = ("observation", "next_observation")


def to_tensor(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """A tensor on the array's own memory, or a copy on the device, by way of pinned memory."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())  # of what is shared torch would warn
    kind = device.type if isinstance(device, torch.device) else torch.device(device).type
    if kind == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if kind == "cuda" else tensor.to(device)


def to_batch(columns: Arrays, observation_space: Any, device: torch.device | str = "cpu") -> Batch:
    """Columns [T+1, B, ...] of time slices or [B, ...] of transitions, and "state/…" [B, ...], as a learner's batch."""
    valid = columns.get("valid")
    if valid is not None and valid.ndim > 1:
        columns = {**columns, "first": episode_starts(valid)}
    device = torch.device(device)
    batch: Batch = {name: to_tensor(array, device) for name, array in columns.items()}
    if hasattr(observation_space, "spaces"):  # else its one array has the right name already
        for name in OBSERVATIONS:
            parts = {key: batch.pop(key) for key in list(batch) if tree.is_under(key, name)}
            if parts:
                batch[name] = tree.nest(observation_space, parts, name)
    states = [key for key in batch if key.startswith("state/")]
    batch["state"] = {key.removeprefix("state/"): batch.pop(key) for key in states}
    return batch


def episode_starts(valid: Array) -> Array:
    """Which rows are the first of an episode, bool [T, B]: those after a row that is no transition, which holds an
    episode's final observation. Row 0 is none, as the state from before it is given: zero where an episode begins."""
    first = np.zeros_like(valid)
    np.logical_not(valid[:-1], out=first[1:])
    return first


def valid_rows(batch: Mapping[str, Any], valid: Tensor) -> Batch:
    """The valid rows alone, as a batch one row long: [T, B, ...] → [1, n, ...], in order of time. valid bool [T, B].

    Where there is none, one invalid row stands for them: networks need not know what to do with nothing.
    """
    chosen = valid.flatten().nonzero().squeeze(1)
    if not len(chosen):
        chosen = chosen.new_zeros(1)
    return tree.map(lambda x: x.flatten(0, 1).index_select(0, chosen).unsqueeze(0), dict(batch))  # type: ignore[no-any-return]


def _select(part: Any, axis: int, chosen: Tensor) -> Any:
    return tree.map(lambda x: x.index_select(axis, chosen.to(x.device)), part)


def minibatches(batch: Mapping[str, Any], count: int, order: torch.Generator) -> Iterator[Batch]:
    """`count` parts of a batch [T, B, ...] that differ in size by at most one column; its "state" is [B, ...].

    Every column is in exactly one part. There are `count` parts also when there are fewer columns, as several learners
    must all make as many updates: what is left over is one column with "valid" False.
    """
    width = batch["valid"].shape[1]
    for part in torch.randperm(width, generator=order).tensor_split(count):
        chosen = part if len(part) else torch.zeros(1, dtype=part.dtype)
        rows = {name: _select(x, 0 if name == "state" else 1, chosen) for name, x in batch.items()}
        if not len(part):
            rows["valid"] = torch.zeros_like(rows["valid"])
        yield rows


def training_rows(batch: Batch, **learned: Tensor) -> Batch:
    """What a policy gradient goes over several times: the transitions of rollouts [T+1, B, ...] with what is to be
    learned of them, [T, B]; where no state runs through them the valid ones alone, [1, n, ...]."""
    names = ("observation", "action", "log_prob", "first", "valid")
    rows = {name: tree.map(lambda x: x[:-1], batch[name]) for name in names} | learned
    return rows | {"state": batch["state"]} if batch["state"] else valid_rows(rows, rows["valid"]) | {"state": {}}
