"""The contract between acting and learning: how many of a batch may be inserted or sampled at this moment.

A limiter describes; `start()` gives the running one. It answers with the largest prefix of a batch that it allows; the
service waits, or for a quota refuses, for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.types import Array

from .numbers import check_number, check_whole


@dataclass
class Counts:
    """What limiters decide by."""

    size: int = 0
    inserts: int = 0
    samples: int = 0


class Limiter(Protocol):
    """A running limiter. The table itself sees to it that no more is sampled than its items can give."""

    refuses: bool  # what it does not allow is refused at once, instead of waiting
    together: bool  # what is held of a block is let in when all of it may be, or when a reader waits: not bit by bit

    @property
    def least(self) -> int: ...  # items, below which nothing can be sampled

    def insertable(self, counts: Counts, wanted: int) -> int: ...
    def sampleable(self, counts: Counts, wanted: int) -> int: ...
    def largest_sample(self, capacity: int, times: int) -> float: ...  # what can ever be allowed at once
    def state(self, counts: Counts) -> str: ...  # for a person


@dataclass(frozen=True)
class MinSize:
    """Sampling waits until the table holds `items`; inserting never waits."""

    items: int = 1
    refuses = False
    together = False

    def __post_init__(self) -> None:
        check_whole("items of MinSize", self.items, 1)

    @property
    def least(self) -> int:
        return self.items

    def start(self) -> Limiter:
        return self

    def insertable(self, counts: Counts, wanted: int) -> int:
        return wanted

    def sampleable(self, counts: Counts, wanted: int) -> int:
        return wanted if counts.size >= self.items else 0

    def largest_sample(self, capacity: int, times: int) -> float:
        return math.inf if capacity >= self.items else 0

    def state(self, counts: Counts) -> str:
        return f"it holds {counts.size:,} of the {self.items:,} items that sampling needs"


@dataclass(frozen=True)
class SamplesPerInsert:
    """Keeps samples within `error_buffer` of `ratio` times the inserts, counted from when `min_size` are there.

    Both sides wait: inserting when it is `error_buffer` samples ahead, sampling when it is as far behind. A batch can
    only be as large as 2 * error_buffer - ratio.
    """

    ratio: float
    min_size: int
    error_buffer: float
    refuses = False
    together = True  # every sample allows a little more

    def __post_init__(self) -> None:
        check_number("ratio of SamplesPerInsert", self.ratio, 1e-9, 1e9)
        check_whole("min_size of SamplesPerInsert", self.min_size, 1)
        check_number("error_buffer of SamplesPerInsert", self.error_buffer, 1.0, 1e15)
        if not self.error_buffer >= max(1.0, self.ratio):
            raise ValueError(
                f"{self} needs an error_buffer of at least max(1, ratio), or both sides would wait for ever"
            )

    @property
    def least(self) -> int:
        return self.min_size

    def start(self) -> Limiter:
        return self

    def _ahead(self, counts: Counts) -> float:
        """Samples that inserting is ahead by."""
        return (counts.inserts - self.min_size) * self.ratio - counts.samples

    def insertable(self, counts: Counts, wanted: int) -> int:
        within = math.floor((self.error_buffer - self._ahead(counts)) / self.ratio + 1e-9)
        return max(0, min(wanted, max(within, self.min_size - counts.size)))

    def sampleable(self, counts: Counts, wanted: int) -> int:
        if counts.size < self.min_size:
            return 0
        return max(0, min(wanted, math.floor(self._ahead(counts) + self.error_buffer + 1e-9)))

    def largest_sample(self, capacity: int, times: int) -> float:
        # not all of 2 * error_buffer: inserting stops somewhere within one insert of its limit
        return math.floor(2 * self.error_buffer - self.ratio) if capacity >= self.min_size else 0

    def state(self, counts: Counts) -> str:
        return (
            f"it holds {counts.size:,} items (sampling needs {self.min_size:,}) after {counts.inserts:,} inserts and "
            f"{counts.samples:,} samples; inserting is {self._ahead(counts):,.1f} samples ahead, "
            f"{self.error_buffer:g} allowed either way at {self.ratio:g} samples per insert"
        )


@dataclass(frozen=True)
class Queue:
    """At most `size` items wait to be read: inserting waits while it is full, sampling while it is empty."""

    size: int
    refuses = False
    together = False
    least = 1

    def __post_init__(self) -> None:
        check_whole("size of Queue", self.size, 1)

    def start(self) -> Limiter:
        return self

    def insertable(self, counts: Counts, wanted: int) -> int:
        return max(0, min(wanted, self.size - counts.size))

    def sampleable(self, counts: Counts, wanted: int) -> int:
        return wanted if counts.size else 0

    def largest_sample(self, capacity: int, times: int) -> float:
        return min(self.size, capacity) * times

    def state(self, counts: Counts) -> str:
        return f"{counts.size:,} of at most {self.size:,} items wait to be read"


@dataclass(frozen=True)
class Quota:
    """Synchronous training: `items` per weight version, each writer once; everything else is refused and counted.

    An item belongs to the version of its last row (`messages.version_row`). The first item of a newer version opens a
    new round: what is left of the round before is removed. Sampling waits until the round is complete.
    """

    items: int

    def __post_init__(self) -> None:
        check_whole("items of Quota", self.items, 1)

    def start(self) -> Limiter:
        return Round(self.items)


@dataclass
class Round:
    """A running `Quota`."""

    items: int
    version: int | None = None
    admitted: int = 0
    writers: set[str] = field(default_factory=set)
    refuses = True
    together = False

    @property
    def least(self) -> int:
        return self.items

    def admit(self, writer: str, versions: Array) -> tuple[int, bool]:
        """How many of a writer's items are let in, and whether they open a new round."""
        newest = int(versions.max())
        opens = self.version is None or newest > self.version
        if opens:
            self.version, self.admitted, self.writers = newest, 0, set()
        if writer in self.writers:
            return 0, False
        current = int((versions == self.version).argmin()) if (versions != self.version).any() else len(versions)
        allowed = min(current, self.items - self.admitted)
        if allowed > 0:
            self.writers.add(writer)
            self.admitted += allowed
        return allowed, opens

    def insertable(self, counts: Counts, wanted: int) -> int:
        return wanted  # `admit` has decided

    def sampleable(self, counts: Counts, wanted: int) -> int:
        return wanted if self.admitted >= self.items else 0

    def largest_sample(self, capacity: int, times: int) -> float:
        return min(self.items, capacity) * times

    def state(self, counts: Counts) -> str:
        if self.version is None:
            return f"no item has come yet of the {self.items:,} that make a round"
        return (
            f"{self.admitted:,} of {self.items:,} items of version {self.version} have come, "
            f"from {len(self.writers):,} writers; {counts.size:,} wait to be read"
        )

    def dump(self) -> dict[str, Any]:
        return {"version": self.version, "admitted": self.admitted, "writers": sorted(self.writers)}

    def restore(self, saved: dict[str, Any], size: int) -> None:
        """What `dump` gave, of a table that holds so many items: all of them were let in by this round."""
        version, admitted, writers = saved["version"], saved["admitted"], saved["writers"]
        if not (version is None or type(version) is int) or not all(type(name) is str for name in writers):
            raise ValueError("the round of a quota has a version or writers that are none")
        check_whole("items of a round", admitted, size, self.items)
        self.version, self.admitted, self.writers = saved["version"], saved["admitted"], set(saved["writers"])


LimiterDescription = MinSize | SamplesPerInsert | Queue | Quota
