"""What every runtime does around a node's object: prepare the process, drive `step`, end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.program import Context, set_current

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def single_threaded_environment() -> dict[str, str]:
    """This process's environment with one computing thread per process, unless the user set a number."""
    return {**dict.fromkeys(THREAD_VARIABLES, "1"), **os.environ}


def keep_memory() -> None:
    """Let glibc keep what was freed. It would give the pages of every large tensor back and fault them in again with
    the next update: 36,000 faults a second in a learner, a tenth of its time."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 25)  # the most that glibc takes


def name_process(name: str) -> None:
    """Have `ps` and `top` show a node's name (the kernel keeps 15 letters of it)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # Linux only
        comm.write(name[:15])


def prepare(context: Context, threads: int = 1) -> None:
    """Seed the global generators (for user code that uses them) and keep torch to its threads."""
    set_current(context)
    random.seed(context.seed)
    np.random.seed(context.seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
        torch.manual_seed(context.seed)


def drive(target: Any, stopping: Callable[[], bool]) -> None:
    """Call `step` until it returns False or the run stops. An error while stopping is the stop's own doing."""
    try:
        while not stopping():
            if target.step() is False:
                break
    except Exception:
        if not stopping():
            raise


def close(target: Any) -> None:
    """Let a node release what it holds; a service's `close` also wakes everybody who waits in it."""
    if callable(getattr(target, "close", None)):
        target.close()


def close_quietly(target: Any) -> None:
    """As `close`, for a node that has failed already: what goes wrong now would hide the cause."""
    with contextlib.suppress(Exception):
        close(target)
