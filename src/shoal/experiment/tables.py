"""The rows of a run as a table: a dict of columns of equal length, or a DataFrame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError

NOT_KNOWN = math.nan  # in a row that has no such value


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
    from shoal.experiment.directory import read_rows

    return table(flat(row) for row in read_rows(Path(run), kind))


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
                found |= {f"time/{node}/{what}": part for node, parts in value.items() for what, part in parts.items()}
            case _, Mapping():
                found |= value
            case _:
                found[name] = value
    return found
