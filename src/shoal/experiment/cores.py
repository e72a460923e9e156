"""How many cores nobody uses: as the machine counts them, whoever the others are that compute on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

COUNTED = Path("/proc/stat")
LONG_ENOUGH = 1.0  # seconds; the machine counts in hundredths


class IdleCores:
    """Of the cores that this process may use: the mean since the first look."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self.mean: float | None = None  # None: not known, or not yet

    def look(self) -> None:
        idle = idle_seconds()
        if idle is None:
            return
        now = time.monotonic()
        if self._began is None:
            self._began = now, idle
        elif now - self._began[0] >= LONG_ENOUGH:
            self.mean = max(0.0, idle - self._began[1]) / (now - self._began[0])


def idle_seconds() -> float | None:
    """Of all cores together, since the machine was started; None where that is not counted."""
    try:
        lines = COUNTED.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    found = [parts for line in lines if (parts := line.split()) and parts[0] in allowed and len(parts) > 5]
    if len(found) < len(allowed):
        return None
    return sum(int(parts[4]) + int(parts[5]) for parts in found) / os.sysconf("SC_CLK_TCK")  # idle, and for a disk
