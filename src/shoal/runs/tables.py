"""The rows of a run as a table: a dict of columns of equal length, or a DataFrame."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from shoal.errors import UserError

METRICS = "metrics.jsonl"  # the file of a run's rows
NOT_KNOWN = math.nan  # in a row that has no such value
LARGEST = 1e300  # a number in a file that is taken for one
TAIL = 1 << 16  # bytes of metrics that are read to see how a run stands


class Table(dict[str, list[Any]]):
    """Columns by name, all of one length."""

    def frame(self) -> Any:
        """As a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError("A DataFrame needs pandas; run: pip install 'shoal[tables]'") from None
        return pandas.DataFrame(dict(self))

    def __len__(self) -> int:
        """How many columns there are, as for any dict."""
        return super().__len__()


def metrics(run: str | Path, kind: str = "progress") -> Table:
    """The rows of a run's metrics of one kind: `progress` (one a second) or `evaluation`."""
    from shoal.runs.directory import read_rows

    return table(flat(row) for row in read_rows(Path(run), kind))


def is_number(value: Any) -> TypeGuard[float]:
    """A finite one with room for sums and margins: a run directory may be damaged, or a stranger's."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    gathered = list(rows)
    names = dict.fromkeys(name for row in gathered for name in row)
    return Table({name: [row.get(name, NOT_KNOWN) for row in gathered] for name in names})


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without groups: counts and values under their names, rates as `…_per_second`, parts of nodes' time as
    `time/node/activity`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        match name, value:
            case "kind", _:
                continue
            case "rates", Mapping():
                found |= {f"{key}_per_second": rate for key, rate in value.items()}
            case "times", Mapping():
                found |= {f"time/{node}/{what}": part for node, parts in value.items() for what, part in _parts(parts)}
            case _, Mapping():
                found |= value
            case _:
                found[name] = value
    return found


def _parts(parts: Any) -> Iterable[tuple[str, Any]]:
    return parts.items() if isinstance(parts, Mapping) else ()


def parse_row(line: str | bytes) -> dict[str, Any] | None:
    """None where it is no row: cut short, or damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def latest(run: Path) -> dict[str, dict[str, Any]]:
    """The last row of each kind among the newest of a run's metrics, also while it goes on."""
    if not (run / METRICS).is_file():  # a pipe would be waited for
        return {}
    try:
        with (run / METRICS).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for row in map(parse_row, lines):
        if row is not None and isinstance(row.get("kind"), str):  # lines are cut short at either end
            found[row["kind"]] = row
    return found


def aligned(rows: list[list[str]]) -> list[str]:
    """Lines of text with columns below each other: the first row is the heading; numbers stand to the right."""
    if not rows:
        return []
    columns = list(zip(*rows))
    widths = [max(map(len, column)) for column in columns]
    right = [all(_is_number(cell) for cell in column[1:] if cell) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(row, widths, right)
        ).rstrip()
        for row in rows
    ]


def folded(rows: list[list[str]], width: int | None) -> list[str]:
    """The same in at most `width` columns where it can be: the first cell of a row is then a line of its own."""
    lines = aligned(rows)
    if width is None or max(map(len, lines)) <= width:
        return lines
    heading, *facts = aligned([row[1:] for row in rows])
    return [f"  {heading}", *(f"{row[0]}\n  {line}" for row, line in zip(rows[1:], facts))]


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-–−+" or cell == ""
