"""A run in a process of its own, to be killed: prints its nodes' process ids when it learns, then goes on for ever."""

from __future__ import annotations

import json
import signal
import sys

from shoal import envs
from shoal.algorithms import impala
from shoal.loops.wiring import Settings
from shoal.program import Handle, Program
from shoal.runtime import launch


def small_program(actors: int = 1, **changes: object) -> Program:
    """IMPALA on CartPole, light enough to share two cores with others."""
    settings = {"envs_per_actor": 4, "unroll": 5, "batch": 4, "queue": 8, "hidden": (8,)} | changes
    cfg = impala.Config(env="CartPole-v1", actors=actors, **settings)  # type: ignore[arg-type]
    return impala.program(cfg, envs.describe("CartPole-v1"), Settings(evaluate=False))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    with launch(small_program(), sys.argv[1], ray_address=None) as run:
        metrics = run.client(Handle("metrics"))
        while not metrics.snapshot()["counts"].get("learner_steps"):
            run.wait(0.1)
        print(json.dumps(run.pids()), flush=True)
        while True:
            run.wait(1.0)
