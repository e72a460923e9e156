"""Everything that a replay holds as plain data, wherever it lies in memory: what two replays are compared by."""

from __future__ import annotations

from typing import Any

import numpy as np

from .intake import Intake
from .tables import RunningTable
from .views import StoredRows

_AT_ONCE = 256  # items that are gathered together


def contents(tables: dict[str, RunningTable], intake: Intake) -> dict[str, Any]:
    """Per table counters, random generator, items in their slots and the rows they stand for; per writer its place."""
    found: dict[str, Any] = {name: _of_table(table) for name, table in tables.items()}
    found["open"] = {
        name: {
            "sequence": writer.sequence,
            "streams": None if writer.streams is None else writer.streams.saved(),
            "arriving": {table: arriving.left()["priorities"] for table, arriving in writer.arriving.items()},
        }
        for name, writer in intake.writers.items()
    }
    return found


def _of_table(table: RunningTable) -> dict[str, Any]:
    arrays, slots = table.saved_arrays(), table.live()
    items = arrays.pop("items")[slots]
    kept = {name: items[name].copy() for name in ("key", "length", "history", "priority", "times_sampled")}
    others = ("free", "sampler", "remover")
    selectors: dict[str, Any] = {name: values.copy() for name, values in arrays.items() if name in others}
    states = {name: values[slots] for name, values in arrays.items() if name.startswith("state/")}
    return {"numbers": table.saved_numbers(), "items": kept, "states": states, **selectors, "rows": _rows(table, items)}


def _rows(table: RunningTable, items: Any) -> list[dict[str, Any]]:
    if not len(items):
        return []
    store, view = table.bound()
    parts = [items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE)]
    gathered = [view.gather(StoredRows(store, table.columns, part), "time")[0] for part in parts]
    return [{name: np.array(values) for name, values in arrays.items()} for arrays in gathered]
