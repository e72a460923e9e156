"""`shoal diff`: what two runs differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.commands.common import OK, parse, print_json, terminal_width
from shoal.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """How it is told."""

    json: bool = False
    """Print one JSON object."""


OPTIONS = (DiffOptions,)


def run(words: Sequence[str]) -> int:
    description = "Config, options, versions and results in which two runs differ."
    typed = parse(words, "shoal diff", description, DiffOptions, "RUN RUN")
    if len(typed.words) != 2:
        raise UserError("shoal diff needs two run directories: shoal diff runs/A runs/B")
    from shoal.runs.run_lists import differences
    from shoal.runs.tables import aligned

    one, other = map(Path, typed.words)
    found = differences(one, other)
    if typed.make(DiffOptions).json:
        print_json({heading: {name: list(pair) for name, pair in parts.items()} for heading, parts in found.items()})
        return OK
    rows = [["", str(one), str(other)]]
    for heading, parts in found.items():
        rows += [[f"{heading} {name}", _cell(first), _cell(second)] for name, (first, second) in parts.items()]
    lines = aligned(rows)
    width = terminal_width()
    if width is not None and max(map(len, lines)) > width:
        lines = [f"A  {one}", f"B  {other}", *aligned([["", "A", "B"], *rows[1:]])]
    print("\n".join(lines) if len(rows) > 1 else "they do not differ")
    return OK


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
