"""Spaces as JSON: a run records them, so that its policy can be rebuilt where the environment is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

Record = dict[str, Any]


def to_record(space: Space[Any]) -> Record:
    """Bounds that are the same everywhere are one number; infinite ones are words, which JSON has no numbers for."""
    match space:
        case spaces.Dict():
            return {"kind": "dict", "parts": {str(key): to_record(part) for key, part in space.items()}}
        case spaces.Tuple():
            return {"kind": "tuple", "parts": [to_record(part) for part in space.spaces]}
        case spaces.Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": "multi_discrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            return {"kind": "multi_binary", "shape": list(space.shape)}
        case spaces.Box():
            low, high = _bounds(space.low), _bounds(space.high)
            return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}
    raise TypeError(f"no record of {space}")


def from_record(record: Mapping[str, Any]) -> Space[Any]:
    """The space that `to_record` was given. Raises ValueError for what is none."""
    try:
        return _from_record(record)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise ValueError(f"no space: {error!r}") from None


def _from_record(record: Mapping[str, Any]) -> Space[Any]:
    match record["kind"]:
        case "dict":
            return spaces.Dict({key: _from_record(part) for key, part in record["parts"].items()})
        case "tuple":
            return spaces.Tuple([_from_record(part) for part in record["parts"]])
        case "discrete":
            return spaces.Discrete(record["n"], start=record["start"])
        case "multi_discrete":
            return spaces.MultiDiscrete(np.array(record["nvec"]), start=np.array(record["start"]))
        case "multi_binary":
            shape = record["shape"]
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case "box":
            dtype, shape = np.dtype(record["dtype"]), tuple(record["shape"])
            low, high = (_array(record[name], dtype, shape) for name in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
    raise KeyError(record["kind"])


def _bounds(bounds: np.ndarray[Any, Any]) -> Any:
    if bounds.size and (bounds == bounds.flat[0]).all():
        return _number(bounds.flat[0].item())
    return [_number(value) for value in bounds.ravel().tolist()]


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)  # "inf", "-inf"


def _array(record: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if isinstance(record, list):
        return np.array([_bound(value) for value in record], dtype).reshape(shape)
    return np.full(shape, _bound(record), dtype)


def _bound(value: float | str) -> float:
    return float(value) if isinstance(value, str) else value
