"""Where an update's time goes: in the program, alone in this process, and in a bare loop of the same method.

The program is the one that `shoal train` would run, without its evaluator, with the learner's seams timed in its own
process. The same learner then makes updates alone, of a batch that such a program has gathered, and a bare loop
(`shoal.bench.bare`) makes them of the same batch, all with as many threads. The difference of the first two is what
services and processes on the same cores cost; that of the last two is what this project's layers and optimizers save.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from shoal.bench.bare import bare
from shoal.bench.limits import gathered, limitless
from shoal.bench.parts import PARTS, Parts, timing_seams
from shoal.bench.throughput import LONGEST_START, TICK, WARM_UP
from shoal.config import replace
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.experiment.checks import prepare
from shoal.experiment.watching import metrics_of, take_snapshot
from shoal.learning import Update
from shoal.loops.wiring import Settings
from shoal.loops.wrapping import wrap_learners
from shoal.options import Acting, Learning
from shoal.products import choose_library
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm
from shoal.runtime import Supervisor, launch
from shoal.runtime.host import keep_memory

PREFIX = "seconds_of_"  # of the names under which a learner reports its parts
UPDATES = "timed_updates"


@dataclasses.dataclass(frozen=True)
class Profile:
    """Seconds of each part, of `updates` updates."""

    seconds: Mapping[str, float]
    updates: int

    @property
    def rate(self) -> float:
        """Updates per second."""
        return self.updates / max(1e-9, sum(self.seconds.values()))

    def milliseconds(self, part: str) -> float:
        return 1e3 * self.seconds.get(part, 0.0) / max(1, self.updates)


class Timed:
    """Stands in for a factory of learners: their seams are timed from then on, and reported with their metrics."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any) -> Any:
        learner, made = self._make(*args), 0
        own, parts = learner.update, Parts()
        seams = ExitStack()  # of this process, as long as it lives

        def update(batch: Any) -> Update:
            nonlocal made
            if not made:
                parts.begin()  # in the thread that drives the learner
                seams.enter_context(timing_seams(parts))
            with parts.part("forward"):
                found: Update = own(batch)
            made += 1
            told = {f"{PREFIX}{part}": seconds for part, seconds in parts.read().items()}
            return dataclasses.replace(found, metrics={**found.metrics, **told, UPDATES: made})

        learner.update = update
        return learner


def profiles(
    name: str, algorithm: Algorithm, cfg: Acting, env: EnvSpec, options: RunOptions, seconds: float
) -> dict[str, Profile]:
    """By where: "program", "alone", and where one is written "bare"."""
    if not isinstance(cfg, Learning):
        raise UserError(
            f"{name} has no learner whose updates could be timed: take one of those with --learner-threads."
        )
    if (why := limitless(cfg)) is not None:
        raise UserError(why.replace("The ceiling is that of this machine's cores", "Parts are timed on a CPU"))
    prepare(algorithm, cfg, env, options)
    found = {"program": in_program(algorithm, cfg, env, options, seconds)}
    before, threads = torch.get_num_threads(), 1 if cfg.learner_threads == "auto" else cfg.learner_threads
    keep_memory()  # as nodes do
    choose_library()
    try:
        captured = gathered(algorithm, replace(cfg, learners=1), env, options.seed)
        torch.set_num_threads(threads)
        learner, batch = captured.learner, captured.batch
        del learner.update  # the class's own again
        parts = Parts()
        with timing_seams(parts):
            found["alone"] = _repeated(lambda: learner.update(dict(batch)), parts, seconds)
        parts = Parts()
        step = bare(name, cfg, env, parts)
        if step is not None:
            found["bare"] = _repeated(lambda: step(dict(batch)), parts, seconds)
    finally:
        torch.set_num_threads(before)
    return found


def in_program(algorithm: Algorithm, cfg: Acting, env: EnvSpec, options: RunOptions, seconds: float) -> Profile:
    """Over `seconds`, from `WARM_UP` after the first update on."""
    program = algorithm.program(cfg, env, Settings(evaluate=False))
    wrap_learners(program, Timed)
    supervisor = Supervisor(max_failures=0)
    first: dict[str, float] | None = None
    last: dict[str, float] = {}
    with launch(program, options.runtime, seed=options.seed, supervisor=supervisor) as run:
        metrics, begin = metrics_of(run), time.monotonic()
        warm: float | None = None
        while warm is None or time.monotonic() < warm + seconds:
            run.wait(TICK)
            snapshot = take_snapshot(run, metrics, 0)
            if snapshot is None or UPDATES not in (values := snapshot["values"]):
                if time.monotonic() - begin > LONGEST_START:
                    raise UserError(f"The learner made no update within {LONGEST_START:.0f} s: nothing can be timed.")
                continue
            warm = warm or time.monotonic() + WARM_UP
            if time.monotonic() >= warm:
                last = {name: value for name, value in values.items() if name == UPDATES or name.startswith(PREFIX)}
                first = first or last
    if first is None or last[UPDATES] <= first[UPDATES]:
        raise UserError(f"--seconds {seconds:g} is too short to time updates: learners report every half second.")
    passed = {part: last[f"{PREFIX}{part}"] - first[f"{PREFIX}{part}"] for part in PARTS}
    return Profile(passed, int(last[UPDATES] - first[UPDATES]))


def _repeated(call: Callable[[], Any], parts: Parts, seconds: float) -> Profile:
    """As many as fit into the time, after a tenth of it; what is in no seam is forward."""
    timed = parts.timed(call, "forward")
    for share in (0.1, 1.0):
        begin, before, made = time.perf_counter(), parts.read(), 0
        while time.perf_counter() - begin < share * seconds or not made:
            timed()
            made += 1
    return Profile({part: total - before[part] for part, total in parts.read().items()}, made)


def lines(found: Mapping[str, Profile]) -> list[str]:
    """For people: milliseconds of each part of an update."""
    heads = {"program": "in the program", "alone": "alone", "bare": "bare loop"}
    told = [f"{'ms an update':14}" + "".join(f"{heads[name]:>16}" for name in found)]
    for part, meaning in PARTS.items():
        told.append(
            f"{part:14}" + "".join(f"{each.milliseconds(part):16.3f}" for each in found.values()) + f"  {meaning}"
        )
    told.append(f"{'all':14}" + "".join(f"{1e3 / each.rate:16.3f}" for each in found.values()))
    told.append(f"{'updates/s':14}" + "".join(f"{each.rate:16,.1f}" for each in found.values()))
    program, alone = found["program"], found["alone"]
    told.append(
        f"The program makes {program.rate / alone.rate:.0%} of the updates that the learner makes alone; "
        f"{program.milliseconds('waiting') * program.rate / 1e3:.0%} of its time it waits for data."
    )
    if "bare" in found:
        told.append(f"Alone it makes {alone.rate / found['bare'].rate:.2f} times those of the bare loop.")
    return told


def report(found: Mapping[str, Profile]) -> dict[str, Any]:
    return {
        name: {"updates_per_second": round(each.rate, 2), "ms": {part: each.milliseconds(part) for part in PARTS}}
        for name, each in found.items()
    }
