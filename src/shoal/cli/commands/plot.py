"""`shoal plot`: curves of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.commands.common import OK, parse, warn
from shoal.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """What is drawn."""

    output: str = "curve.png"
    """The picture; its ending says the format: png, svg, pdf, …"""
    by: str | None = None
    """Fields of configs with commas between, a curve for each of their values; default: those in which runs differ."""
    where: str | None = None
    """Only runs with name=value, with commas between: state=finished,unroll=5."""


OPTIONS = (PlotOptions,)


def run(words: Sequence[str]) -> int:
    description = (
        "Draw returns against steps and seconds: a panel for each task, a curve for each setting, the interquartile "
        "mean over its seeds with a 95 % interval."
    )
    typed = parse(words, "shoal plot", description, PlotOptions, "RUN...")
    options: PlotOptions = typed.make(PlotOptions)
    if not typed.words:
        raise UserError("shoal plot needs run directories: shoal plot runs/A runs/B [--output curve.png]")
    from shoal.analysis.plots import draw

    runs = [Path(word) for word in typed.words]
    for label in draw(runs, Path(options.output), warn, options.by, options.where):
        print(label)
    print(f"→ {options.output}")
    return OK
