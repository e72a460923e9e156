"""Starting programs on the runtimes under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from shoal.program import Program
from shoal.runtime import Run
from shoal.runtime.inline import InlineRun
from shoal.runtime.local import run as local
from shoal.runtime.local.run import LocalRun
from shoal.runtime.restarts import Supervisor

Start = Callable[..., Run]


def start_on(name: str, program: Program, seed: int = 0, supervisor: Supervisor | None = None) -> Run:
    if name == "inline":
        return InlineRun(program, seed=seed, supervisor=supervisor)
    if name == "ray":
        from shoal.runtime.ray.run import RayRun

        return RayRun(program, seed=seed, supervisor=supervisor)
    if name == "spawn":  # as on a system without fork and memfd
        with mock.patch.object(local, "HAS_MEMFD", False):
            return LocalRun(program, seed=seed, supervisor=supervisor, fork=False)
    run = LocalRun(program, seed=seed, supervisor=supervisor)
    local.warm()  # the next run's imports begin while this one is tested
    return run


def wait_until(run: Run, condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Supervise the run until the condition holds."""
    step = 0.02
    for _ in range(int(seconds / step)):
        if condition():
            return
        run.wait(step)
    raise AssertionError(f"the condition did not hold within {seconds} s")
