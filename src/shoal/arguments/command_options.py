"""Options of the commands, beside those of a run (`options.py`) and of an algorithm's config."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config import Count, Positive, Seed
from shoal.runs.options import Runtime


@dataclass(frozen=True, kw_only=True)
class Output:
    """How results are told."""

    json: bool = False
    """Progress goes to stderr; the last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """A run that goes on and was not made on this account."""

    trust: bool = False
    """Let it run the code that it names: its algorithm, environment, network. Asked once."""


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
