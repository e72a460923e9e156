"""Mean, deviation and range of columns, added up while a dataset is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.types import Array

MOST = 1024  # numbers of a row that have moments of their own; of larger ones, images, all together have one


@dataclass(frozen=True, eq=False)
class Moments:
    """Of one column over all rows that have it; arrays of a row's shape, or of () for images."""

    count: int  # rows
    mean: Array
    deviation: Array
    least: Array
    most: Array


def none() -> dict[str, Any]:
    return {}


def add(sums: dict[str, Any], columns: Mapping[str, Array]) -> None:
    """Add rows [T, ...] of each column to what was added up before."""
    for name, column in columns.items():
        flat = column.reshape(len(column), -1)
        values = flat.astype(np.float64)
        if flat.shape[1] > MOST:
            values = values.reshape(-1, 1)
        found = {
            "count": len(column),
            "sum": values.sum(0),
            "squares": np.square(values).sum(0),
            "least": values.min(0),
            "most": values.max(0),
        }
        before = sums.get(name)
        if before is not None:
            found["count"] += before["count"]
            for key, join in (("sum", np.add), ("squares", np.add), ("least", np.minimum), ("most", np.maximum)):
                found[key] = join(found[key], np.asarray(before[key]))
        sums[name] = found


def plain(sums: Mapping[str, Any]) -> dict[str, Any]:
    """As a file has them."""
    return {
        name: {key: value if key == "count" else np.asarray(value).tolist() for key, value in found.items()}
        for name, found in sums.items()
    }


def moments(found: Mapping[str, Any], shape: tuple[int, ...]) -> Moments:
    """Of what was added up for a column whose rows have this shape."""
    size = int(np.prod(shape, dtype=np.int64))
    pooled = size > MOST
    shape, count = ((), found["count"] * size) if pooled else (shape, found["count"])
    total, squares, least, most = (
        np.asarray(found[key], np.float64).reshape(shape) for key in ("sum", "squares", "least", "most")
    )
    mean = total / max(1, count)
    deviation = np.sqrt(np.maximum(squares / max(1, count) - mean**2, 0.0))
    return Moments(found["count"], mean, deviation, least, most)
