"""Which cores the threads of a service run on.

Threads that do their work in turns under one lock find each other's caches warm on one core; on two the turns of a
replay service take half as long again. A thread that lets go of the lock to copy much works beside the others, and for
that it may have every core again.
"""

from __future__ import annotations

import os
import threading


class _Local(threading.local):
    before: frozenset[int] = frozenset()  # cores that this thread could run on before it was kept to one


_local = _Local()


def keep_to_one_core() -> None:
    """Have this thread run on the same core as all others of its process that were told to."""
    if hasattr(os, "sched_setaffinity"):
        _local.before = frozenset(os.sched_getaffinity(0))
        cores = sorted(_local.before)
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})  # services started one after the other spread out


def use_all_cores() -> None:
    """Let this thread run where it could before, from now on."""
    if _local.before:
        os.sched_setaffinity(0, _local.before)
        _local.before = frozenset()
