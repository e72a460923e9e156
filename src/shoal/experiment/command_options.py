"""Options of the commands, beside those of a run (`options.py`) and of an algorithm's config."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config import Count, Positive, Seed
from shoal.experiment.options import Runtime


@dataclass(frozen=True, kw_only=True)
class Output:
    """How results are told."""

    json: bool = False
    """Progress goes to stderr; the last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """What is drawn."""

    output: str = "curve.png"
    """The picture; its ending says the format: png, pdf, svg, …"""


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
    json: bool = False
    """The last line of stdout is one JSON object."""
