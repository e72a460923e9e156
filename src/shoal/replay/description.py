"""What a table is, before anything runs: a name, a capacity, who is sampled, who is removed, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .limiters import LimiterDescription, MinSize, Queue, Quota
from .messages import Operation
from .numbers import check_whole
from .selectors import Fifo, Selector, Uniform

_MOST_ITEMS = 2**31 - 2  # slots are 32-bit numbers

Signature = Mapping[str, tuple[tuple[int, ...], str]]  # column: (shape of one row, dtype)


@dataclass(frozen=True)
class Table:
    """Description of a table.

    `max_times_sampled` removes an item once it was sampled so often (0: never). `soft_capacity` is the fraction of
    the capacity by which the table may outgrow it before the excess is removed in one batch (True: 0.1). `signature`
    fixes the table's columns; without it the first insert does. `operations` are applied to every sample, in order.
    """

    name: str
    capacity: int
    sampler: Selector = field(default_factory=Uniform)
    remover: Selector = field(default_factory=Fifo)
    limiter: LimiterDescription = field(default_factory=MinSize)
    max_times_sampled: int = 0
    soft_capacity: bool | float = False
    signature: Signature | None = None
    operations: tuple[Operation, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a table needs a name")
        if not isinstance(self.name, str) or "|" in self.name:
            raise ValueError(f"a table's name is text without '|', not {self.name!r}")
        check_whole(f"capacity of table {self.name!r}", self.capacity, 1, _MOST_ITEMS)
        check_whole(f"max_times_sampled of table {self.name!r} (0: without limit)", self.max_times_sampled, 0)
        if not 0 <= float(self.soft_capacity) < 100 or self.slots > _MOST_ITEMS:
            raise ValueError(f"table {self.name!r} has soft_capacity={self.soft_capacity}; give a fraction such as 0.1")
        if isinstance(self.limiter, Queue | Quota) and self.max_times_sampled == 0:
            raise ValueError(f"table {self.name!r} has a {type(self.limiter).__name__}; set max_times_sampled")
        if self.limiter.start().largest_sample(self.capacity, 1) < 1:
            raise ValueError(
                f"table {self.name!r} can never be sampled: its limiter {self.limiter} needs more capacity"
            )
        if self.signature is not None:
            fixed = {name: (tuple(shape), np.dtype(kind).str) for name, (shape, kind) in self.signature.items()}
            object.__setattr__(self, "signature", fixed)

    @property
    def slots(self) -> int:
        """Items that are there at the very most."""
        excess = 0.1 if self.soft_capacity is True else float(self.soft_capacity)
        return self.capacity + int(np.ceil(self.capacity * excess))

    @staticmethod
    def queue(name: str, size: int) -> Table:
        """Read once, oldest first: inserting waits while `size` items are unread, sampling waits for items."""
        return Table(name, size, sampler=Fifo(), remover=Fifo(), limiter=Queue(size), max_times_sampled=1)

    @staticmethod
    def quota(name: str, items: int) -> Table:
        """Synchronous training: `items` per weight version, each writer once, read once in the order they came."""
        return Table(name, items, sampler=Fifo(), remover=Fifo(), limiter=Quota(items), max_times_sampled=1)
