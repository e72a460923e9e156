"""The tasks that every side is given, in the same sizes, and how each of them counts.

Run in the peers' environments too, so it needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from importlib import metadata
from typing import Any

WARM_UP = 2.0  # seconds from the first update, as with `shoal bench throughput`
LEARNING_RATE = 2.5e-4
CLIP = 0.1
METHODS = {"ppo": "PPO", "impala": "IMPALA", "appo": "APPO", "sac": "SAC", "td3": "TD3"}
CONTROL = ("sac", "td3")  # those that sample a replay


@dataclass(frozen=True)
class Work:
    """How much is acted for an update, and how often it is gone over."""

    environments: int
    unroll: int  # steps of each environment
    rows: int  # steps that are trained on together, `epochs` times
    epochs: int
    minibatches: int  # updates in each of them

    @property
    def minibatch(self) -> int:
        return self.rows // self.minibatches


@dataclass(frozen=True)
class Task:
    env: str
    works: dict[str, Work]  # by method

    def work(self, method: str) -> Work:
        return self.works[method]


def queued(work: Work) -> dict[str, Work]:
    """Of the methods whose actors do not wait for their learner."""
    return {"impala": work, "appo": work}


TASKS = {
    # 84 × 84 × 4 grey bytes, four frames an action and no sticky actions, up to 30 frames of nothing at the start,
    # rewards clipped; the convolutions of Mnih 2015, one layer of 512 units and ReLU for both policy and value
    "pong": Task(
        "PongNoFrameskip-v4",
        {"ppo": Work(environments=8, unroll=128, rows=8 * 128, epochs=4, minibatches=4)}
        | queued(Work(environments=16, unroll=20, rows=32 * 20, epochs=1, minibatches=1)),
    ),
    # two layers of 64 units and tanh for the policy, and two for the value
    "cartpole": Task(
        "CartPole-v1",
        {"ppo": Work(environments=64, unroll=32, rows=64 * 32, epochs=4, minibatches=4)}
        | queued(Work(environments=64, unroll=32, rows=64 * 32, epochs=1, minibatches=1)),
    ),
    # two layers of 256 units and ReLU for the actor and for each of two critics; an update of 256 rows for each step,
    # so that a step is trained on 256 times
    "halfcheetah": Task(
        "HalfCheetah-v5",
        dict.fromkeys(("sac", "td3"), Work(environments=1, unroll=1, rows=256, epochs=256, minibatches=1)),
    ),
}


class Clock:
    """Counts steps from the first update that is `WARM_UP` seconds after the very first one, for so many seconds.

    `update` is told at the end of each update, or of each report, how many steps there have been since the beginning.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._first: float | None = None
        self._begin: tuple[float, dict[str, float]] | None = None
        self._end: tuple[float, dict[str, float]] | None = None

    def update(self, **counts: float) -> bool:
        """Whether it goes on."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
        if self._begin is None:
            if now >= self._first + WARM_UP:
                self._begin = now, counts
            return True
        self._end = now, counts
        return now < self._begin[0] + self.seconds

    def result(self, packages: tuple[str, ...], **more: Any) -> str:
        """The line that a side prints last: for each count its rate."""
        if self._begin is None or self._end is None:
            raise SystemExit("There were too few updates to measure: give more --seconds.")
        (begin, before), (end, after) = self._begin, self._end
        rates = {f"{name}_per_second": round((after[name] - before[name]) / (end - begin), 1) for name in after}
        versions = {name: metadata.version(name) for name in packages}
        return json.dumps({**rates, "seconds": round(end - begin, 3), "versions": versions, **more})


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every side is asked: TASK [--method ppo] [--seconds 30] [--threads 2]."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--method", choices=METHODS, default="ppo")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2, help="of torch, where networks are trained")
    return parser
