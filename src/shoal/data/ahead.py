"""Reading ahead of time from a dataset that does not fit into memory.

Rows that are not cached would be read one page after the other, each when a gather touches it. Who says beforehand
which items come next has the disk read them side by side, while the learner learns.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from shoal.data.dataset import Dataset
from shoal.data.items import Placed

PAGE = 4096
FITS = 0.5  # of the memory that there is: a dataset smaller than that stays cached once it was read
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """Bytes that this process may use: the machine's, or its container's limit."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in (*LIMITS, *_own_limits()):
        try:
            there = min(there, int(Path(file).read_text()))
        except (OSError, ValueError):
            continue  # there is none, or "max"
    return there


def _own_limits() -> list[str]:
    """Of the group that this process is in, where the machine's own files show others."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            found.append(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")
        elif not controllers:
            found.append(f"/sys/fs/cgroup{path}/memory.max")
    return found


class ReadAhead:
    """Has the disk read items, from a thread of its own, which ends with this object."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._threads = ThreadPoolExecutor(1, "shoal-read-ahead")

    @staticmethod
    def helps(dataset: Dataset) -> bool:
        return hasattr(os, "posix_fadvise") and dataset.nbytes > FITS * memory()

    def ask(self, placed: Placed) -> None:
        """These items will be wanted soon."""
        self._threads.submit(_advise, self._dataset, placed)


def _advise(dataset: Dataset, placed: Placed) -> None:
    row = dataset.record.itemsize
    first = placed.start * row // PAGE * PAGE
    size = -(-(placed.start + placed.length) * row // PAGE) * PAGE - first
    order = np.argsort(first)
    for begin, count in zip(first[order].tolist(), size[order].tolist()):
        os.posix_fadvise(dataset.descriptor, begin, count, os.POSIX_FADV_WILLNEED)
