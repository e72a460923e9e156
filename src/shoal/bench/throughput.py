"""Measuring throughput: the same program and config as `shoal train`, only without its evaluator.

Steps per second are counted between two reports of the actors: the first one that is at least `WARM_UP` seconds after
the learner's first update, and the last one before the end. Start-up and the filling of the queue are left out; nothing
else is. Steps the learner has trained on are counted over the same stretch, for acting alone proves little.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.bench.limits import Limits, gradients_per_update
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.experiment.checks import prepare
from shoal.experiment.ending import Interrupts
from shoal.experiment.places import on_cluster
from shoal.experiment.progress import Progress
from shoal.experiment.watching import metrics_of, take_snapshot
from shoal.loops.wiring import Settings
from shoal.options import Acting
from shoal.runs import registry
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm
from shoal.runtime import Supervisor, launch

WARM_UP = 2.0  # seconds from the first update
LONGEST_START = 120.0  # seconds until the first update
TICK = 0.02
TOGETHER = 0.1  # seconds within which reports count as one: learners of a group finish an update together


@dataclass(frozen=True)
class Measurement:
    seconds: float  # that were measured
    env_steps: int
    env_steps_per_second: float
    trained_steps_per_second: float
    learner_steps_per_second: float
    staleness: float | None
    restarts: int
    bottleneck: str


@dataclass
class Counter:
    """When a count last changed and to what: a report of half a second arrives all at once."""

    begin: tuple[float, float] | None = None
    end: tuple[float, float] | None = None

    def take(self, now: float, count: float) -> None:
        if self.end is not None and count == self.end[1]:
            return
        if self.begin is not None and self.end is not None and now - self.end[0] < TOGETHER:  # more of the same moment
            if self.begin == self.end:
                self.begin = (self.begin[0], count)
            self.end = (self.end[0], count)
            return
        if self.end is not None and self.begin is None:
            self.begin = (now, count)
        self.end = (now, count)

    def rate(self) -> float:
        if self.begin is None or self.end is None or self.end[0] <= self.begin[0]:
            return 0.0
        return (self.end[1] - self.begin[1]) / (self.end[0] - self.begin[0])


def measure(algorithm: Algorithm, cfg: Acting, env: EnvSpec, options: RunOptions, seconds: float) -> Measurement:
    """One run of `seconds` after the warm-up."""
    prepare(algorithm, cfg, env, options)
    program = algorithm.program(cfg, env, Settings(evaluate=False))
    supervisor = Supervisor(max_failures=options.max_failures)
    progress = Progress()
    acted, trained, updated = Counter(), Counter(), Counter()
    with (
        Interrupts() as interrupts,
        launch(program, options.runtime, seed=options.seed, supervisor=supervisor, cluster=on_cluster(options)) as run,
    ):
        metrics = metrics_of(run)
        progress.take_roles(program)
        begin = time.monotonic()
        first_update: float | None = None
        while first_update is None or time.monotonic() < first_update + WARM_UP + seconds:
            run.wait(TICK)
            if interrupts.asked:
                raise KeyboardInterrupt
            snapshot = take_snapshot(run, metrics, 0)
            if snapshot is None:
                continue
            now = time.monotonic()
            if first_update is None:
                if snapshot["counts"].get("learner_steps"):
                    first_update = now
                elif now - begin > LONGEST_START:
                    raise UserError(
                        f"The learner made no update within {LONGEST_START:.0f} s: nothing can be measured."
                    )
            elif now >= first_update + WARM_UP:
                progress.take(snapshot, now - begin, sum(supervisor.restarts.values()))
                acted.take(now, progress.count("env_steps"))
                trained.take(now, progress.count("trained_steps"))
                updated.take(now, progress.count("learner_steps"))
    if acted.begin is None or acted.end is None or not acted.rate() or not trained.rate():
        raise UserError(
            f"--seconds {seconds:g} is too short to measure: actors and learners report every half second, and two "
            "updates must fall into it; give more."
        )
    return Measurement(
        seconds=round(acted.end[0] - acted.begin[0], 3),
        env_steps=int(acted.end[1] - acted.begin[1]),
        env_steps_per_second=round(acted.rate(), 1),
        trained_steps_per_second=round(trained.rate(), 1),
        learner_steps_per_second=round(updated.rate(), 1),
        staleness=progress.values.get("staleness"),
        restarts=sum(supervisor.restarts.values()),
        bottleneck=progress.bottleneck(),
    )


def throughput(
    name: str,
    algorithm: Algorithm,
    cfg: Acting,
    env: EnvSpec,
    options: RunOptions,
    seconds: float,
    repeat: int,
    each: Callable[[Measurement], None],
    limits: Limits | None = None,
) -> dict[str, Any]:
    """`repeat` runs, their medians and all of them, and the share of the machine's `limits` that they reach."""
    runs = []
    for number in range(repeat):
        seeded = dataclasses.replace(options, seed=options.seed + number)
        runs.append(measure(algorithm, cfg, env, seeded, seconds))
        each(runs[-1])
    names = ("env_steps_per_second", "trained_steps_per_second", "learner_steps_per_second")
    rates = {rate: round(statistics.median(getattr(run, rate) for run in runs), 1) for rate in names}
    return {
        "bench": "throughput",
        "algorithm": registry.short_name(name),
        "env": env.name,
        "runtime": options.runtime,
        **rates,
        **({} if limits is None else reached(limits, rates, gradients_per_update(cfg))),
        "measured": f"from {WARM_UP:g} s after the first update; medians of {repeat} runs of {seconds:g} s",
        "bottleneck": runs[-1].bottleneck,
        "runs": [dataclasses.asdict(run) for run in runs],
        "config": dataclasses.asdict(cfg),
    }


def reached(limits: Limits, rates: dict[str, float], gradients: int) -> dict[str, Any]:
    """How near the rates come to the ceiling for as many updates per step as there were."""
    acted, updates = rates["env_steps_per_second"], rates["learner_steps_per_second"] * gradients
    return {
        "ceiling": round(limits.ceiling(updates / acted), 1),
        "share_of_ceiling": round(limits.busy(acted, updates), 3),
        "limits": dataclasses.asdict(limits),
    }
