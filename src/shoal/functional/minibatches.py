"""Shuffled minibatches out of a batch, for updates that go over the same rows several times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

Columns = dict[str, Tensor]


def valid_rows(columns: Mapping[str, Tensor], valid: Tensor) -> Columns:
    """The valid rows alone, as a batch one row long: [T, B, ...] → [1, n, ...], in order of time. valid bool [T, B]."""
    chosen = valid.flatten().nonzero().squeeze(1)
    return {name: x.flatten(0, 1).index_select(0, chosen).unsqueeze(0) for name, x in columns.items()}


def minibatches(columns: Mapping[str, Tensor], count: int, order: torch.Generator) -> Iterator[Columns]:
    """`count` parts of a batch [T, B, ...] that differ in size by at most one column; "state/…" columns are [B, ...].

    Every column is in exactly one part. There are `count` parts also when there are fewer columns, then some are
    empty: several learners must all make as many updates.
    """
    width = next(x.shape[1] for name, x in columns.items() if not name.startswith("state/"))
    for part in torch.randperm(width, generator=order).tensor_split(count):
        yield {
            name: x.index_select(0 if name.startswith("state/") else 1, part.to(x.device))
            for name, x in columns.items()
        }
