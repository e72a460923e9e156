"""What a number given to replay must be, said in one sentence: whole or finite, within its limits."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from shoal.types import Array

LONGEST_ITEM = np.iinfo(np.int16).max  # rows: what a table's arrays have room for
LONGEST_CHUNK = 1 << 14  # rows
LARGEST_PRIORITY = 1e30  # far beyond any use, and its powers still add up to something finite
_LONGEST_WAIT = 1e9  # seconds: longer than what the system's waiting takes


def check_whole(name: str, value: Any, least: int, most: int = 2**31 - 2) -> int:
    """`value` as an int, or ValueError unless it is a whole number between the two."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or not least <= number <= most:
        raise ValueError(f"{name}={value!r} must be a whole number from {least:,} to {most:,}")
    return number


def check_number(name: str, value: Any, least: float, most: float = math.inf) -> float:
    """`value` as a float, or ValueError unless it is finite and between the two."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{name}={value!r} must be a number")
    if not (math.isfinite(value) and least <= value <= most):
        limits = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name}={value!r} must be a finite number, {limits}")
    return float(value)


def check_timeout(timeout: Any) -> float | None:
    """Seconds to wait, None for ever; infinity is for ever too."""
    if timeout is None or timeout == math.inf:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | np.integer | np.floating) or not timeout >= 0:
        raise ValueError(f"timeout={timeout!r} must be seconds, 0 or more, or None to wait without limit")
    return float(timeout) if timeout <= _LONGEST_WAIT else None


def check_keys(table: str, keys: Any) -> Array:
    """Keys as int64, or ValueError unless they are whole numbers in one row: a float may be another item's key."""
    array = np.asarray(keys)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"table {table!r} was given keys of dtype {array.dtype} and shape {array.shape}; "
            "keys are whole numbers in one row, as a sample has them"
        )
    if array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max:
        raise ValueError(f"table {table!r} was given the key {array.max()}; keys are below 2**63")
    return array.astype(np.int64)


def check_priorities(table: str, priorities: Array) -> None:
    least, most = 0.0, LARGEST_PRIORITY
    if len(priorities) and not (np.minimum.reduce(priorities) >= least and np.maximum.reduce(priorities) <= most):
        bad = priorities[~((priorities >= least) & (priorities <= most))][0]
        raise ValueError(
            f"table {table!r} was given the priority {bad}; priorities are finite and not negative, at most {most:g}"
        )
