"""`shoal compare`: returns of several settings over their seeds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.commands.common import OK, parse, print_json, terminal_width, warn
from shoal.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How runs are put together."""

    by: str | None = None
    """Fields of configs with commas between; default: those in which the runs differ."""
    where: str | None = None
    """Only runs with name=value, with commas between: state=finished."""
    target: float | None = None
    """The return to which steps and seconds are counted, at the first evaluation that has it; default: each run's own
    --stop-return, confirmed."""
    output: str | None = None
    """A picture of it; its ending says the format: png, svg, pdf, …"""
    json: bool = False
    """Print one JSON array."""


OPTIONS = (CompareOptions,)


def run(words: Sequence[str]) -> int:
    description = (
        "Last evaluated returns of runs, put together over seeds: the interquartile mean and its 95 % bootstrap "
        "interval, and steps and seconds to the target."
    )
    typed = parse(words, "shoal compare", description, CompareOptions, "RUN...")
    options: CompareOptions = typed.make(CompareOptions)
    if not typed.words:
        raise UserError("shoal compare needs runs, or folders of runs: shoal compare runs/A runs/B [--by FIELD]")
    from shoal.analysis import comparisons, grouping
    from shoal.runs.run_lists import find_runs

    found, strange = find_runs([Path(word) for word in typed.words])
    for sentence in strange:
        warn(f"left out: {sentence}")
    runs = [one for one in grouping.chosen(found, options.where) if one.eval_return is not None]
    if not runs:
        raise UserError("There is nothing to compare: no run among these has an evaluation.")
    by = grouping.words(options.by)
    for name in grouping.put_together(group for groups in grouping.grouped(runs, by).values() for group in groups):
        warn(f"runs of one setting differ in {name}: --by {','.join([*by, name])} tells them apart")
    tasks = comparisons.compare(runs, by, options.target)
    if options.output is not None:
        comparisons.draw(tasks, Path(options.output))
    if options.json:
        print_json([one.as_dict() for settings in tasks.values() for one in settings])
        return OK
    print("\n".join(comparisons.lines(tasks, terminal_width())))
    if options.output is not None:
        print(f"→ {options.output}")
    return OK
