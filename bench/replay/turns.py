"""One side of the comparison: it fills its table, says so, and then measures a window whenever it is told to.

Run in the peers' environments too, so it needs nothing but Python.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

WINDOW = 0.5  # seconds


def rate(call: Callable[[], int]) -> float:
    """Items per second of a call that says how many it has handled."""
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < WINDOW:
        done += call()
    return done / spent


def take_turns(measures: dict[str, Callable[[], float]]) -> None:
    """Answer each line of the input, the name of a measure, with its result."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(measures[line.strip()](), flush=True)
