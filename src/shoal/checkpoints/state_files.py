"""A nested state as two files: its tensors in safetensors, everything else in JSON. Loading executes nothing.

A state holds tensors, arrays, numpy scalars, numbers, strings, bytes, None, lists, tuples, and dicts whose keys are
strings or whole numbers, and comes back exactly: dtypes, tuples, whole numbers of any size (random generators have 128
bits).

In the JSON file a number, string, boolean or null stands for itself, and everything else is an object with one entry
that names its kind: {"list": [...]}, {"tuple": [...]}, {"dict": [[key, value], ...]}, {"float": "nan"}, and for what
lies in the safetensors file under a name {"tensor": name}, {"array": name}, {"scalar": name}, {"bytes": name}.
"""

from __future__ import annotations

import errno
import json
import math
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.errors import UserError

TENSORS, REST = ".safetensors", ".json"  # what the two files of a state end with
DEEPEST = 64  # levels of nesting
_LARGEST_JSON = 256 << 20  # bytes: such a file is read as a whole
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_SAVED = "tensors, arrays, numbers, strings, bytes, None, lists, tuples and dicts can be saved"


class DamagedCheckpoint(UserError):
    """A file is not what was written, or not a checkpoint at all: nothing of it was used."""


def plain(path: Path) -> Path:
    """The path of a file to be read. A pipe would be waited for and a device read without end: OSError."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # which says what it is by itself
        raise OSError(errno.EINVAL, "It is no regular file", str(path))
    return path


def write_state(stem: Path, state: Any) -> list[Path]:
    """Write the two files of a state, whose names begin with `stem`; they are not yet forced to the disk."""
    tensors: dict[str, Tensor] = {}
    described = json.dumps(_describe(state, "", tensors, 0), allow_nan=False, separators=(",", ":"))
    files = [stem.with_name(stem.name + TENSORS), stem.with_name(stem.name + REST)]
    save_file(tensors, files[0])
    files[1].write_text(described, encoding="utf-8")
    return files


def read_state(stem: Path) -> Any:
    """The state that was written, or `DamagedCheckpoint`. Tensors are on the CPU."""
    tensors_file, rest = stem.with_name(stem.name + TENSORS), stem.with_name(stem.name + REST)
    try:
        if rest.stat().st_size > _LARGEST_JSON:
            raise DamagedCheckpoint(f"{rest} is damaged: {rest.stat().st_size:,} bytes are too many for it.")
        described = json.loads(rest.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        with safe_open(tensors_file, framework="pt", device="cpu") as file:
            names = set(file.keys())
            used: set[str] = set()
            state = _Reader(file, names, used, rest).build(described, 0)
    except OSError as error:
        raise DamagedCheckpoint(
            f"{error.filename or tensors_file} cannot be read: {error.strerror or error}."
        ) from None
    except (ValueError, RecursionError, SafetensorError, TypeError) as error:
        raise DamagedCheckpoint(f"{stem} is damaged: {' '.join(str(error).split())[:200]}.") from None
    if names != used:
        raise DamagedCheckpoint(f"{tensors_file} is damaged: nothing refers to {sorted(names - used)[0]!r} in it.")
    return state


# ---- writing ---------------------------------------------------------------------------------------------------------


def _describe(value: Any, place: str, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > DEEPEST:
        raise TypeError(f"{place[:60]}… is nested more than {DEEPEST} levels deep and cannot be saved")
    match value:
        case None | bool():
            return value
        case np.generic() if not isinstance(value, str | bytes):
            return {"scalar": _put(tensors, place, _tensor(np.asarray(value), place))}
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        case str():
            return str(value)
        case bytes():
            return {
                "bytes": _put(
                    tensors, place, torch.frombuffer(bytearray(value or b"\0"), dtype=torch.uint8)[: len(value)]
                )
            }
        case Tensor():
            return {"tensor": _put(tensors, place, _own(value))}
        case np.ndarray():
            return {"array": _put(tensors, place, _tensor(value, place))}
        case list() | tuple():
            parts = [_describe(part, f"{place}/{i}", tensors, depth + 1) for i, part in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": parts}
        case Mapping():
            return {"dict": [_entry(key, part, place, tensors, depth) for key, part in value.items()]}
    raise TypeError(f"{place or 'the state'} is {_kind(value)}, which cannot be saved: {_SAVED}")


def _entry(key: Any, value: Any, place: str, tensors: dict[str, Tensor], depth: int) -> list[Any]:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(
            f"{place or 'the state'} has the key {key!r}: only strings and whole numbers can be saved as keys"
        )
    key = str(key) if isinstance(key, str) else int(key)
    return [key, _describe(value, f"{place}/{key}" if place else str(key), tensors, depth + 1)]


def _put(tensors: dict[str, Tensor], place: str, tensor: Tensor) -> str:
    """Under the place's own name, so that other programs can read the file; with a number where two are alike."""
    name, number = place or "state", 1
    while name in tensors:
        number += 1
        name = f"{place}#{number}"
    tensors[name] = tensor
    return name


def _own(tensor: Tensor) -> Tensor:
    """Contiguous and alone in its memory, as safetensors wants it: parameters are views of one flat tensor."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _tensor(array: np.ndarray[Any, Any], place: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))  # a copy: it may be read-only, or change
    except TypeError:
        raise TypeError(f"{place or 'the state'} is an array of {array.dtype}, which cannot be saved") from None


def _kind(value: Any) -> str:
    name = type(value).__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# ---- reading ---------------------------------------------------------------------------------------------------------


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


class _Reader:
    """Builds a state from its description, and refuses whatever `_describe` would not have written."""

    def __init__(self, file: Any, names: set[str], used: set[str], path: Path) -> None:
        self._file, self._names, self._used, self._path = file, names, used, path

    def build(self, described: Any, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        if described is None or isinstance(described, bool | int | float | str):
            return described
        if not isinstance(described, dict) or len(described) != 1:
            raise ValueError(f"{str(described)[:60]!r} is no value")
        ((kind, content),) = described.items()
        match kind, content:
            case (("list" | "tuple"), list()):
                parts = [self.build(part, depth + 1) for part in content]
                return tuple(parts) if kind == "tuple" else parts
            case "dict", list():
                return self._dict(content, depth)
            case "float", str() if content in _NOT_FINITE:
                return _NOT_FINITE[content]
            case (("tensor" | "array" | "scalar" | "bytes"), str()):
                return self._leaf(kind, content)
        raise ValueError(f"{kind[:60]!r} with {str(content)[:60]!r} is no value")

    def _dict(self, entries: list[Any], depth: int) -> dict[str | int, Any]:
        built: dict[str | int, Any] = {}
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError(f"{str(entry)[:60]!r} is no entry of a dict")
            key, value = entry
            if isinstance(key, bool) or not isinstance(key, str | int) or key in built:
                raise ValueError(f"{str(key)[:60]!r} is no key, or there twice")
            built[key] = self.build(value, depth + 1)
        return built

    def _leaf(self, kind: str, name: str) -> Any:
        if name not in self._names or name in self._used:
            raise ValueError(f"the tensor {name[:60]!r} is missing, or used twice")
        self._used.add(name)
        tensor: Tensor = self._file.get_tensor(name)
        if kind == "tensor":
            return tensor
        array = tensor.numpy()
        if kind == "array":
            return array
        if kind == "scalar" and array.shape == ():
            return array[()]
        if kind == "bytes" and array.ndim == 1 and array.dtype == np.uint8:
            return array.tobytes()
        raise ValueError(f"the tensor {name[:60]!r} of {array.dtype} {array.shape} is no {kind}")
