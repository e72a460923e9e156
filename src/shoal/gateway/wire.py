"""Messages as bytes: msgpack, with arrays as openpi encodes them. What strangers send is bounded before it is built.

An array is the map {b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [..]}; keys may be strings, for
languages whose maps have no others. A single number of numpy's is {b"__npgeneric__": True, b"data": .., b"dtype": ..}.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np

from shoal.types import Array

Message = dict[str, Any]  # one message: of numbers, strings, arrays, and lists and maps of them

KINDS = "biuf"  # bool, integers and floats; objects, records, complex numbers, strings and dates are refused
WIDEST = 8  # bytes of a number
MOST_AXES = 16
MOST_PARTS = 4096  # of one list or map: preallocated by its header, before a single part has come
MOST_ELEMENTS = 32_768  # of all lists and maps of a message together: an empty one has a byte on the wire and 64 here
LONGEST_TEXT = 65_536  # bytes


class WireError(ValueError):
    """What came is no message, in one sentence that may be told to whoever sent it."""


def pack(message: Message, text_keys: bool = False) -> bytes:
    """A message as bytes; with `text_keys` the maps of arrays have strings for keys."""
    return msgpack.packb(message, default=_as_text_map if text_keys else _as_map)  # type: ignore[no-any-return]


def unpack(data: bytes) -> Message:
    """The message that the bytes are. Arrays are views of them and cannot be written to."""
    reading = _Reading()
    try:
        message = msgpack.unpackb(
            data,
            object_hook=reading.map,
            list_hook=reading.list,
            ext_hook=reading.extension,
            strict_map_key=True,
            max_str_len=LONGEST_TEXT,
            max_array_len=MOST_PARTS,
            max_map_len=MOST_PARTS,
            max_ext_len=0,
        )
    except WireError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"this is no msgpack within the limits of the protocol ({type(error).__name__})") from None
    if type(message) is not dict or not all(type(key) is str for key in message):
        raise WireError("a message is a map whose keys are strings")
    return message


def _as_map(value: Any) -> dict[bytes, Any]:
    array = _plain(value)
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}


def _as_text_map(value: Any) -> dict[str, Any]:
    array = _plain(value)
    return {"__ndarray__": True, "data": array.tobytes(), "dtype": array.dtype.str, "shape": array.shape}


def _plain(value: Any) -> Array:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{type(value).__name__} cannot be sent: only numbers, strings, arrays, lists and maps can")
    array = np.asarray(value)
    if array.dtype.kind not in KINDS or array.dtype.itemsize > WIDEST:
        raise TypeError(f"arrays of {array.dtype} cannot be sent")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


class _Reading:
    """What one message may still hold."""

    def __init__(self) -> None:
        self._left = MOST_ELEMENTS

    def map(self, value: dict[Any, Any]) -> Any:
        self._left -= len(value) + 1
        if self._left < 0:
            raise WireError(f"a message holds at most {MOST_ELEMENTS:,} parts: send arrays, not lists of numbers")
        if b"__ndarray__" in value:
            return _array(value.get(b"data"), value.get(b"dtype"), value.get(b"shape"))
        if "__ndarray__" in value:
            return _array(value.get("data"), value.get("dtype"), value.get("shape"))
        if b"__npgeneric__" in value:
            return _number(value.get(b"data"), value.get(b"dtype"))
        return value

    def list(self, value: list[Any]) -> list[Any]:
        self._left -= len(value) + 1
        if self._left < 0:
            raise WireError(f"a message holds at most {MOST_ELEMENTS:,} parts: send arrays, not lists of numbers")
        return value

    @staticmethod
    def extension(code: int, data: bytes) -> Any:
        raise WireError("msgpack's extension types are not part of the protocol")


_DTYPES: dict[str, np.dtype[Any]] = {  # in the order of bytes that they are sent in; "=" is nobody's but the sender's
    name: np.dtype(name)
    for kind, sizes in (("b", "1"), ("i", "1248"), ("u", "1248"), ("f", "248"))
    for size in sizes
    for name in ([f"|{kind}1", f"<{kind}1"] if size == "1" else [f"<{kind}{size}", f">{kind}{size}"])
}


def _dtype(name: Any) -> np.dtype[Any]:
    found = _DTYPES.get(name) if type(name) is str else None
    if found is None:
        raise WireError(
            f"arrays of {str(name)[:40]!r} are refused: bool, integers and floats of at most {WIDEST} bytes can be "
            "sent, as '<f4' or '|u1'"
        )
    return found


def _array(data: Any, dtype: Any, shape: Any) -> Array:
    kind = _dtype(dtype)
    if type(data) is not bytes or not isinstance(shape, list):
        raise WireError("an array has data (bytes), dtype (a string) and shape (a list)")
    if len(shape) > MOST_AXES or not all(type(size) is int and 0 <= size <= len(data) for size in shape):
        raise WireError(f"an array has at most {MOST_AXES} axes, of sizes that its data can fill")
    if math.prod(shape) * kind.itemsize != len(data):
        raise WireError(f"an array of {kind} and shape {shape} has {len(data)} bytes of data")
    if kind.kind == "b":  # a byte that is neither 0 nor 1 would be a bool that is neither False nor True
        return np.not_equal(np.frombuffer(data, np.uint8).reshape(shape), 0)
    array = np.frombuffer(data, kind).reshape(shape)
    return array if kind.isnative else array.astype(kind.newbyteorder("="))


def _number(data: Any, dtype: Any) -> Any:
    kind = _dtype(dtype)
    if type(data) not in (bool, int, float):
        raise WireError("a number of numpy's has data (a number) and dtype (a string)")
    try:
        return kind.newbyteorder("=").type(data)
    except (OverflowError, ValueError):
        raise WireError(f"{data!r:.40} is no {kind}") from None
