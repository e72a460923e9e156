"""Random streams in the one format, for tests of laws over time."""

from __future__ import annotations

import torch
from torch import Tensor


def stream(length: int, count: int, seed: int = 0, gamma: float = 0.9) -> dict[str, Tensor]:
    """values [T+1, B], rewards, discounts, valid [T, B] in double: episodes of 1 to 6 rows, ended either way.

    An invalid row follows every end; what it and the rows before it must not depend on is not zeroed here.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(length + 1, count, generator=generator, dtype=torch.float64)
    rewards = torch.randn(length, count, generator=generator, dtype=torch.float64)
    valid = torch.ones(length, count, dtype=torch.bool)
    discounts = torch.full((length, count), gamma, dtype=torch.float64)
    for b in range(count):
        row = -1
        while True:
            row += int(torch.randint(1, 7, (), generator=generator))
            if row >= length:
                break
            if torch.rand((), generator=generator) < 0.5:
                discounts[row, b] = 0.0  # terminated; else truncated
            if row + 1 < length:
                valid[row + 1, b] = False
            row += 1
    return {"values": values, "rewards": rewards, "discounts": discounts, "valid": valid}
