"""Numbers about a table: rates, waits, ages, how often items were sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import sync

if TYPE_CHECKING:
    from .tables import RunningTable

_MOST_ITEMS = 100_000  # ages and times sampled are taken from at most so many, evenly spread
_MARKS = 256
_SPAN = 10.0  # seconds over which rates are taken


@dataclass
class Waits:
    """How often and how long somebody waited for a limiter."""

    count: int = 0
    seconds: float = 0.0
    now: int = 0  # waiting at this moment
    items: int = 0  # that the last one has waited for


@contextmanager
def waiting(waits: Sequence[Waits]) -> Iterator[None]:
    """Count and time a wait."""
    began = sync.monotonic()
    for each in waits:
        each.count += 1
        each.now += 1
    try:
        yield
    finally:
        for each in waits:
            each.now -= 1
            each.seconds += sync.monotonic() - began


@dataclass
class Statistics:
    """Kept by a table as it goes."""

    insert_waits: Waits = field(default_factory=Waits)
    sample_waits: Waits = field(default_factory=Waits)
    marks: list[tuple[float, int, int]] = field(default_factory=list)  # (time, inserts, samples) when somebody asked

    def __post_init__(self) -> None:
        self.mark(0, 0)

    def mark(self, inserts: int, samples: int) -> None:
        now = sync.monotonic()
        if not self.marks or now - self.marks[-1][0] >= 1.0:
            self.marks.append((now, inserts, samples))
            if len(self.marks) > _MARKS:  # thin out the older half: ages need no better resolution there
                half = _MARKS // 2
                self.marks = self.marks[:half:2] + self.marks[half:]

    def rates(self, inserts: int, samples: int) -> tuple[float, float]:
        """Inserts and samples per second, over the last ten seconds or since somebody asked before that."""
        now = sync.monotonic()
        recent = [mark for mark in self.marks if now - mark[0] <= _SPAN]
        since = recent[0] if recent else self.marks[-1]
        if now <= since[0]:
            return 0.0, 0.0
        return (inserts - since[1]) / (now - since[0]), (samples - since[2]) / (now - since[0])

    def ages(self, inserts: Any) -> Any:
        """Seconds since the table had seen so many inserts."""
        times, counts, _ = np.array(self.marks).T
        now = sync.monotonic()
        return now - np.interp(inserts, np.r_[counts, max(counts[-1] + 1, np.max(inserts))], np.r_[times, now])


def describe(table: RunningTable) -> dict[str, Any]:
    """Plain numbers and short lists of them."""
    counts, statistics, description = table.counts, table.statistics, table.description
    inserts_rate, samples_rate = statistics.rates(counts.inserts, counts.samples)
    statistics.mark(counts.inserts, counts.samples)
    numbers: dict[str, Any] = {
        "size": counts.size,
        "capacity": description.capacity,
        "needed": max(table.limiter.least, statistics.sample_waits.items),  # that are there when somebody samples
        "inserts": counts.inserts,
        "samples": counts.samples,
        "deletes": table.deletes,
        "refused": table.refused,
        "repeated": table.repeated,
        "stale_updates": table.stale_updates,
        "inserts_per_second": inserts_rate,
        "samples_per_second": samples_rate,
        "item_bytes": table.item_bytes(),
        "row_bytes": table.store.used_bytes if table.store is not None else 0,  # shared with tables of the same columns
    }
    for side, waits in (("insert", statistics.insert_waits), ("sample", statistics.sample_waits)):
        numbers |= {f"{side}_waits": waits.count, f"{side}_wait_seconds": waits.seconds, f"{side}_waiting": waits.now}
    inserted, sampled = table.ages_and_uses(_MOST_ITEMS)
    if len(inserted):
        ages = counts.inserts - 1 - inserted
        seconds = statistics.ages(inserted)
        numbers |= {"age_mean": float(ages.mean()), "age_max": int(ages.max())}  # in inserts since
        numbers |= {"age_seconds_mean": float(seconds.mean()), "age_seconds_max": float(seconds.max())}
        numbers["times_sampled_mean"] = float(sampled.mean())
        # how many items were sampled 0, 1, 2-3, 4-7, 8-15, … times
        groups = np.bincount(np.frexp(sampled.astype(float))[1])
        numbers["times_sampled_histogram"] = (groups * (counts.size / len(sampled))).round().astype(int).tolist()
    return numbers
