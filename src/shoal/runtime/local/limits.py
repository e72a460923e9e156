"""What one machine can run: a program that is too large is refused in a sentence, before the machine gives up."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from shoal.errors import UserError
from shoal.program import Node, Program

NODE_MEMORY = 8 << 20  # bytes that a forked node takes at the least, before its environments do anything
SPARE_FILES = 256  # that a process has open beside its streams to other nodes
SHARE = 0.9  # of processes, threads and memory that a run may take


def raise_file_limit() -> None:
    """As many open files as the system lets this user have: a service has two streams to each of its callers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True)
class Limits:
    """Of this machine, for this user."""

    tasks: float  # processes and threads
    files: float  # of one process
    memory: float  # bytes that are free

    @classmethod
    def here(cls) -> Limits:
        bounds = [_finite(resource.getrlimit(resource.RLIMIT_NPROC)[0])]
        for path in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"):
            with contextlib.suppress(OSError, ValueError), open(path) as file:
                bounds.append(float(file.read()))
        return cls(min(bounds), _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), _free_memory())


def _finite(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else float(limit)


def _free_memory() -> float:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def check(program: Program, limits: Limits, more: Collection[Node] = ()) -> None:
    """Refuse what cannot be run here, or not with `more` nodes, whose memory is asked for alone. A node has two threads
    of its own, and two for each node that calls it."""
    nodes, new = len(program.nodes) + len(more), len(more) or len(program.nodes)
    callers = Counter(callee for node in (*program.nodes.values(), *more) for callee in node.callees())
    tasks = 2 * nodes + 2 * callers.total()
    files = max([nodes, *(2 * count for count in callers.values())]) + SPARE_FILES
    needs = (
        (tasks, SHARE * limits.tasks, f"{tasks:,} processes and threads", f"{limits.tasks:,.0f} are allowed"),
        (files, limits.files, f"{files:,} open files in one process", f"{limits.files:,.0f} are allowed (ulimit -n)"),
        (
            nodes * NODE_MEMORY,
            SHARE * limits.memory + (nodes - new) * NODE_MEMORY,
            f"{new * NODE_MEMORY / 2**30:,.0f} GB of memory",
            f"{limits.memory / 2**30:,.1f} GB are free",
        ),
    )
    for needed, allowed, needs_words, allowed_words in needs:
        if needed > allowed:
            fitting = int(nodes * allowed / needed)
            raise UserError(
                f"{nodes:,} nodes need at least {needs_words} on this machine, where {allowed_words}: give fewer "
                f"--actors (about {fitting:,} nodes would fit) with more environments each, or use --runtime ray on "
                "several machines."
            )
