"""Batches as learners see them: tensors on the learner's device, observations nested as their space.

Beside the columns that are stored, a batch of time slices has "state", the recurrent state from before its first row,
and "first", which says where episodes begin. (Sequences of R2D2 end with their episode: its page says which begin one.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from shoal import tree
from shoal.types import Array, Arrays, Values

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
    return nested({name: to_tensor(array, device) for name, array in columns.items()}, observation_space)


def nested(batch: Batch, observation_space: Any) -> Batch:
    """Columns by name, as a learner has them: observations nested as their space, and "state" with its parts."""
    if hasattr(observation_space, "spaces"):  # else its one array has the right name already
        for name in OBSERVATIONS:
            parts = {key: batch.pop(key) for key in list(batch) if tree.is_under(key, name)}
            if parts:
                batch[name] = tree.nest(observation_space, parts, name)
    states = [key for key in batch if key.startswith("state/")]
    batch["state"] = {key.removeprefix("state/"): batch.pop(key) for key in states}
    return batch


def with_final_rows(rows: Mapping[str, Tensor], final: Mapping[str, Tensor], ended: Tensor) -> dict[str, Tensor]:
    """Rows [T+1, B, ...] of environments that reset within a step (SAME_STEP), as others give them: after each row with
    which an episode ended, bool [T, B], comes one that is no transition and holds the final observation, of `final`
    [T, B, ...], so that values are bootstrapped from it and recurrent states go through it.

    There are more rows by the most ends of one environment; where there are fewer, the last row is repeated, which must
    be no transition itself.
    """
    before = torch.cat([torch.zeros_like(ended[:1], dtype=torch.int64), ended.cumsum(0)])  # ends before each row
    length, count = before.shape
    place = before + torch.arange(length, device=ended.device).unsqueeze(-1)
    environment = torch.arange(count, device=ended.device)
    longest = length + int(before[-1].max())
    result = {}
    for name, column in rows.items():
        placed = column[-1:].repeat(longest, *[1] * (column.dim() - 1))
        if name == "valid":
            placed = torch.zeros_like(placed)
        if name in final:  # also where nothing ended: the next row is written over it
            placed[place[:-1] + 1, environment] = final[name].to(column.dtype)
        placed[place, environment] = column
        result[name] = placed
    return result


def episode_starts(valid: Values) -> Values:
    """Which rows are the first of an episode, bool [T, B]: those after a row that is no transition, which holds an
    episode's final observation. Row 0 is none, as the state from before it is given: zero where an episode begins."""
    first = valid & False
    first[1:] = ~valid[:-1]
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


def _part(part: Any, axis: int, begin: int, length: int) -> Any:
    return tree.map(lambda x: x.narrow(axis, begin, length), part)


def minibatches(batch: Mapping[str, Any], count: int, order: torch.Generator) -> Iterator[Batch]:
    """`count` parts of a batch [T, B, ...] that differ in size by at most one column; its "state" is [B, ...].

    Every column is in exactly one part. There are `count` parts also when there are fewer columns, as several learners
    must all make as many updates: what is left over is one column with "valid" False. Of single rows all are put in
    order at once, and parts are views of that.
    """
    length, width = batch["valid"].shape
    shuffled = torch.randperm(width, generator=order)
    if length == 1 and width >= count:
        ordered = {name: _select(x, 0 if name == "state" else 1, shuffled) for name, x in batch.items()}
        bounds = [number * width // count for number in range(count + 1)]
        for begin, end in pairwise(bounds):
            yield {name: _part(x, 0 if name == "state" else 1, begin, end - begin) for name, x in ordered.items()}
        return
    for part in shuffled.tensor_split(count):
        chosen = part if len(part) else torch.zeros(1, dtype=part.dtype)
        rows = {name: _select(x, 0 if name == "state" else 1, chosen) for name, x in batch.items()}
        if not len(part):
            rows["valid"] = torch.zeros_like(rows["valid"])
        yield rows


def one_row(batch: Mapping[str, Any]) -> Batch:
    """What was seen and done in transitions [B, ...], as valid rows of time slices [1, B, ...]: for networks that take
    these."""
    rows = tree.map(lambda x: x.unsqueeze(0), {name: batch[name] for name in ("observation", "action")})
    count = len(batch["action"])
    device = batch["action"].device
    valid = torch.ones(1, count, dtype=torch.bool, device=device)
    return {**rows, "valid": valid, "first": torch.zeros_like(valid)}


def training_rows(batch: Batch, **learned: Tensor) -> Batch:
    """What a policy gradient goes over several times: the transitions of rollouts [T+1, B, ...] with what is to be
    learned of them, [T, B]; where no state runs through them the valid ones alone, [1, n, ...]."""
    names = ("observation", "action", "log_prob", "first", "valid")
    rows = {name: tree.map(lambda x: x[:-1], batch[name]) for name in names} | learned
    return rows | {"state": batch["state"]} if batch["state"] else valid_rows(rows, rows["valid"]) | {"state": {}}
