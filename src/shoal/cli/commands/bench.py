"""`shoal bench`: what a program reaches, what the machine allows, and how fast the replay service is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.arguments.words import HELP
from shoal.cli.commands.algorithm import configure, take_algorithm, warm
from shoal.cli.commands.common import ERROR, OK, USAGE, Commands, parse, print_json
from shoal.config import Count, Positive, Seed, validate
from shoal.errors import UserError, did_you_mean
from shoal.runs.options import RunOptions, Runtime

if TYPE_CHECKING:
    from shoal.runtime import RunFailed

HELP_TEXT = """\
usage: shoal bench BENCHMARK …

  bench throughput ALGORITHM steps per second of the program that shoal train
                             would run, and which share of the limits that is
  bench limits ALGORITHM     what this machine allows: environments, inference
                             and training alone, and the ceiling they imply
  bench update ALGORITHM     where the time of an update goes, in the program,
                             alone and in a bare loop of the same method
  bench replay               items per second of the replay service
  bench checkpoints          what checkpoints cost a learner, and how soon a
                             resumed run learns

Each has --help. For example: shoal bench throughput impala --env CartPole-v1"""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The measurement; the algorithm runs with the config that `shoal train` would use, without the evaluator."""

    seconds: Positive = 10.0
    """Measured, after the warm-up."""
    repeat: Count = 1
    """Runs; their median counts."""
    runtime: Runtime = "local"
    ray_address: str | None = None
    """Of a running Ray cluster."""
    seed: Seed = 0
    """Of the run; every node derives its own."""
    limits: bool = True
    """Measure first what this machine allows, and say which share of it is reached."""
    json: bool = False
    """The last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class ReplayBenchOptions:
    """What is measured."""

    repeat: Count = 5
    """Windows of half a second, of which the best counts."""
    quick: bool = False
    """Only the three kinds of work: not growth, age and checkpoints of a large table."""
    json: bool = False
    """The last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class CheckpointBenchOptions:
    """What is measured; each run fills its replay first."""

    seconds: Positive = 30.0
    """Measured of each run."""
    repeat: Count = 3
    """Pairs of runs, with checkpoints and without."""
    every: Positive = 10.0
    """Seconds between the checkpoints of a run that takes them."""
    json: bool = False
    """The last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class LimitsOptions:
    """The measurement; the parts have the sizes that the algorithm's config gives them."""

    part_seconds: Positive = 1.0
    """That each part is measured for."""
    seed: Seed = 0
    """Of environments and networks."""
    json: bool = False
    """The last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """The measurement; the algorithm runs with the config that `shoal train` would use, without the evaluator."""

    seconds: Positive = 10.0
    """Measured, of each: the program, the learner alone, the bare loop."""
    seed: Seed = 0
    """Of the run; every node derives its own."""
    json: bool = False
    """The last line of stdout is one JSON object."""


def run(words: Sequence[str]) -> int:
    if not words or words[0] in HELP:
        print(HELP_TEXT)
        return OK if words else USAGE
    if f"bench {words[0]}" not in COMMANDS:
        raise UserError(
            f"There is no benchmark {words[0]}: choose throughput, limits, update, replay or checkpoints."
            f"{did_you_mean(words[0], [name.partition(' ')[2] for name in COMMANDS])}"
        )
    return COMMANDS[f"bench {words[0]}"][0](words[1:])


def _throughput(words: Sequence[str]) -> int:
    name, words = take_algorithm("bench throughput", words)
    warm(words)
    page, env, config, typed = configure("bench throughput", name, words, BenchOptions)
    from shoal.bench.limits import limitless, measure_limits
    from shoal.bench.throughput import Measurement, throughput
    from shoal.experiment.checks import prepare
    from shoal.runtime import RunFailed

    bench: BenchOptions = typed.make(BenchOptions)
    validate(bench)
    options = RunOptions(runtime=bench.runtime, ray_address=bench.ray_address, seed=bench.seed)

    def show(run: Measurement) -> None:
        print(
            f"{run.env_steps_per_second:12,.0f} env steps/s {run.trained_steps_per_second:12,.0f} trained steps/s "
            f"{run.learner_steps_per_second:8,.1f} updates/s over {run.seconds:.1f} s; bottleneck: {run.bottleneck}",
            file=sys.stderr,
            flush=True,
        )

    # on this machine's cores alone: a GPU or a cluster has no such ceiling
    bounded = bench.limits and bench.runtime == "local" and limitless(config) is None
    if bounded:
        prepare(page, config, env, options)  # whatever cannot run is refused before anything is measured
    try:
        limits = measure_limits(page, config, env) if bounded else None
        report = throughput(name, page, config, env, options, bench.seconds, bench.repeat, show, limits)
    except RunFailed as failure:
        return _failed(failure)
    if bench.json:
        print_json(report)
    else:
        print(
            f"{report['algorithm']} on {report['env']} ({report['runtime']}): "
            f"{report['env_steps_per_second']:,.0f} env steps/s, {report['trained_steps_per_second']:,.0f} trained "
            f"steps/s ({report['measured']})"
        )
        if limits is not None:
            print(
                f"{report['share_of_ceiling']:.0%} of the ceiling of {report['ceiling']:,.0f} env steps/s "
                "(shoal bench limits shows its parts)"
            )
    return OK


def _failed(failure: RunFailed) -> int:
    print(f"{failure.traceback or ''}shoal: {failure}", file=sys.stderr)
    return ERROR


def _limits(words: Sequence[str]) -> int:
    name, words = take_algorithm("bench limits", words)
    page, env, config, typed = configure("bench limits", name, words, LimitsOptions)
    options: LimitsOptions = typed.make(LimitsOptions)
    validate(options)
    from shoal.bench.limits import lines, measure_limits, report
    from shoal.experiment.checks import prepare
    from shoal.runtime import RunFailed

    prepare(page, config, env, RunOptions(seed=options.seed))
    try:
        limits = measure_limits(page, config, env, options.part_seconds, options.seed)
    except RunFailed as failure:
        return _failed(failure)
    if options.json:
        print_json({"bench": "limits", "algorithm": name, "env": env.name, **report(limits, config)})
    else:
        print("\n".join(lines(limits, config)))
    return OK


def _update(words: Sequence[str]) -> int:
    name, words = take_algorithm("bench update", words)
    warm(words)
    page, env, config, typed = configure("bench update", name, words, UpdateOptions)
    options: UpdateOptions = typed.make(UpdateOptions)
    validate(options)
    from shoal.bench.updates import lines, profiles, report
    from shoal.runtime import RunFailed

    try:
        found = profiles(name, page, config, env, RunOptions(seed=options.seed), options.seconds)
    except RunFailed as failure:
        return _failed(failure)
    if options.json:
        print_json({"bench": "update", "algorithm": name, "env": env.name, **report(found)})
    else:
        print("\n".join(lines(found)))
    return OK


def _replay(words: Sequence[str]) -> int:
    description = "The replay service under three kinds of work, in process and from a process of its own."
    options, _ = parse(words, "shoal bench replay", description, ReplayBenchOptions)
    from shoal.bench.replay import measure_all

    report = measure_all(options.repeat, options.quick, sys.stderr if options.json else sys.stdout)
    if options.json:
        print_json(report)
    return OK


def _checkpoints(words: Sequence[str]) -> int:
    description = "What checkpoints cost a learner, and how soon a resumed run learns."
    options, _ = parse(words, "shoal bench checkpoints", description, CheckpointBenchOptions)
    from shoal.bench.checkpoints import checkpoints, lines

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    report = checkpoints(options.seconds, options.repeat, options.every, show)
    if options.json:
        print_json(report)
    else:
        print("\n".join(lines(report)))
    return OK


COMMANDS: Commands = {
    "bench": (run, ()),
    "bench throughput": (_throughput, (BenchOptions,)),
    "bench limits": (_limits, (LimitsOptions,)),
    "bench update": (_update, (UpdateOptions,)),
    "bench replay": (_replay, (ReplayBenchOptions,)),
    "bench checkpoints": (_checkpoints, (CheckpointBenchOptions,)),
}
