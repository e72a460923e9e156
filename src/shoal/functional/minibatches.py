"""Shuffled minibatches out of a batch, for updates that go over the same rows several times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

Columns = dict[str, Tensor]


def valid_rows(columns: Mapping[str, Tensor], valid: Tensor) -> Columns:
    """The valid rows alone, as a batch one row long: [T, B, ...] → [1, n, ...], in order of time. valid bool [T, B].

    Where there is none, one invalid row stands for them: networks need not know what to do with nothing.
    """
    chosen = valid.flatten().nonzero().squeeze(1)
    if not len(chosen):
        chosen = chosen.new_zeros(1)
    return {name: x.flatten(0, 1).index_select(0, chosen).unsqueeze(0) for name, x in columns.items()}


def minibatches(columns: Mapping[str, Tensor], count: int, order: torch.Generator) -> Iterator[Columns]:
    """`count` parts of a batch [T, B, ...] that differ in size by at most one column; "state/…" columns are [B, ...].

    Every column is in exactly one part. There are `count` parts also when there are fewer columns, as several learners
    must all make as many updates: what is left over is one column with "valid" False.
    """
    width = columns["valid"].shape[1]
    for part in torch.randperm(width, generator=order).tensor_split(count):
        chosen = part if len(part) else torch.zeros(1, dtype=part.dtype)
        rows = {
            name: x.index_select(0 if name.startswith("state/") else 1, chosen.to(x.device))
            for name, x in columns.items()
        }
        if not len(part):
            rows["valid"] = torch.zeros_like(rows["valid"])
        yield rows
