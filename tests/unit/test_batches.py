"""Minibatches: every row once per pass, none twice, in as many parts as asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.batches import minibatches, valid_rows


def columns(length: int, width: int) -> dict[str, Tensor]:
    number = torch.arange(length * width).view(length, width)
    return {
        "number": number,
        "vector": number.unsqueeze(-1).expand(length, width, 3).clone(),
        "valid": torch.ones(length, width, dtype=torch.bool),
        "state/hidden": number[0].float(),
    }


@pytest.mark.parametrize(("width", "count"), [(12, 4), (13, 4), (7, 7), (5, 1)])
def test_a_pass_holds_every_column_exactly_once_in_parts_of_nearly_one_size(width: int, count: int) -> None:
    parts = list(minibatches(columns(3, width), count, torch.Generator().manual_seed(0)))
    sizes = [part["number"].shape[1] for part in parts]
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= 1
    seen = torch.cat([part["number"] for part in parts], dim=1)
    assert seen[0].sort().values.tolist() == list(range(width))


def test_what_belongs_together_stays_together() -> None:
    for part in minibatches(columns(3, 10), 3, torch.Generator().manual_seed(0)):
        assert torch.equal(part["vector"][..., 1], part["number"])
        assert torch.equal(part["state/hidden"], part["number"][0].float())


def test_passes_are_shuffled_anew_and_repeat_with_the_seed() -> None:
    def passes(seed: int) -> list[list[int]]:
        order = torch.Generator().manual_seed(seed)
        batch = columns(1, 32)
        return [torch.cat([part["number"][0] for part in minibatches(batch, 4, order)]).tolist() for _ in range(2)]

    first, second = passes(3)
    assert first != second
    assert passes(3) == [first, second]
    assert passes(4) != [first, second]


def test_fewer_columns_than_parts_leave_parts_that_count_for_nothing() -> None:
    parts = list(minibatches(columns(2, 3), 5, torch.Generator().manual_seed(0)))
    assert len(parts) == 5
    assert sum(int(part["valid"].sum()) for part in parts) == 2 * 3
    assert all(part["number"].shape[1] == 1 for part in parts)


def test_valid_rows_are_kept_in_order_and_the_others_dropped() -> None:
    batch = columns(2, 3)
    batch["valid"] = torch.tensor([[True, False, True], [False, True, True]])
    batch.pop("state/hidden")
    rows = valid_rows(batch, batch["valid"])
    assert rows["number"].tolist() == [[0, 2, 4, 5]]
    assert rows["vector"].shape == (1, 4, 3)
    assert rows["valid"].all()


def test_without_valid_rows_one_invalid_row_stands_for_them() -> None:
    batch = columns(2, 3)
    batch["valid"] = torch.zeros(2, 3, dtype=torch.bool)
    rows = valid_rows({name: x for name, x in batch.items() if name != "state/hidden"}, batch["valid"])
    assert rows["number"].shape == (1, 1)
    assert not rows["valid"].any()
