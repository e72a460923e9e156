"""A run that takes checkpoints for days holds no more descriptors and threads than after the first."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starting import Start

from conftest import SLOW_RAY
from shoal.checkpoints import Checkpoints
from shoal.experiment.checkpointing import Checkpointer
from shoal.program import Program
from shoal.runs.options import RunOptions
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.sync import sleep
from shoal.types import Role
from shoal.versions import make_version

CHECKPOINTS = 200


class Learner:
    """Publishes, and gives its state."""

    role = Role.LEARNER
    in_checkpoints = True

    def __init__(self, weights: WeightStore, metrics: Metrics) -> None:
        self._weights, self._updates = weights, 0
        weights.publish({"w": np.zeros(100, np.float32)}, make_version(0, 0))

    def step(self) -> None:
        self._updates += 1
        self._weights.publish({"w": np.full(100, self._updates, np.float32)}, make_version(0, self._updates))
        sleep(0.005)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "learner": {}}


def describe() -> dict[str, Any]:
    return {"env_steps": 0, "seconds": 0.0, "evaluations": 0, "metrics_bytes": 0}


@pytest.mark.parametrize("runtime", ["inline", "local", SLOW_RAY], indirect=True)
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_checkpoints_leave_no_descriptors_and_threads_open(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # how long the disk takes is not asked here
    program = Program()
    metrics = program.add("metrics", Metrics)
    program.add("learner", Learner, program.add("weights", WeightStore), metrics)
    run = start(program)
    checkpointer = Checkpointer(
        Checkpoints(tmp_path / "checkpoints", 1), run, program, RunOptions(checkpoint_every=1.0), note=lambda text: None
    )
    now, first, deadline = 0.0, (0, 0), time.monotonic() + 120.0
    while checkpointer.saved < CHECKPOINTS:
        assert time.monotonic() < deadline, f"{checkpointer.saved} checkpoints"
        checkpointer.tick(now := now + 1.0, 0, None, describe)
        run.wait(0.005)
        time.sleep(0.001)  # on a virtual clock nothing waits for the disk
        if checkpointer.saved == 5 and not any(first):
            first = held()
    assert held()[0] <= first[0] + 2, "descriptors"
    assert held()[1] <= first[1] + 2, "threads"


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()
