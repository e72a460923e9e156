"""Files that are complete or absent: a header, arrays and a checksum, put in place by renaming."""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np

from shoal.types import Array

from .errors import BadCheckpoint
from .numbers import check_whole

_MAGIC = b"shoal replay 2\n"
MOST_COMPRESSED = 256  # bytes that a compressed byte can become: what claims more is not believed


def pack(array: Array) -> bytes:
    """The bytes of an array, compressed."""
    packed: bytes = lz4.block.compress(np.ascontiguousarray(array).reshape(-1).view(np.uint8), store_size=False)
    return packed


def unpack(packed: bytes | memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    if size > MOST_COMPRESSED * len(packed) + 1024:
        raise BadCheckpoint(f"{len(packed):,} bytes cannot be {size:,} compressed")
    try:
        raw = lz4.block.decompress(packed, uncompressed_size=size)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise BadCheckpoint(f"compressed data is damaged: {error}") from None
    if len(raw) != size:
        raise BadCheckpoint(f"compressed data gives {len(raw)} bytes where {size} belong")
    return np.frombuffer(raw, dtype).reshape(shape)


def write_whole(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> int:
    """Write a file under another name and rename it, so that `path` is the old file or the new one; its bytes."""
    parts = {name: pack(array) for name, array in arrays.items()}
    index = [[name, arrays[name].dtype.descr, list(arrays[name].shape), len(part)] for name, part in parts.items()]
    head = json.dumps({"header": header, "arrays": index}).encode()
    pieces = [_MAGIC, struct.pack("<Q", len(head)), head, *parts.values()]
    check = 0
    for piece in pieces:
        check = zlib.crc32(piece, check)
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as file:
        for piece in (*pieces, struct.pack("<I", check)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
    return sum(map(len, pieces)) + 4


def read_whole(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a file by `write_whole`, or BadCheckpoint."""
    data, head, offset = _read(path)
    arrays = {}
    try:
        for name, kind, shape, length in head["arrays"]:
            if type(length) is not int or length < 0 or type(name) is not str:
                raise ValueError("an array has no name or no size")
            packed = data[offset : offset + length]
            sizes = tuple(check_whole("shape of an array", size, 0, 1 << 40) for size in shape)
            arrays[name] = unpack(packed, sizes, _dtype(kind))
            offset += length
        header = head["header"]
        if not isinstance(header, dict):
            raise ValueError("there is no header")
    except BadCheckpoint:
        raise
    except (AttributeError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} does not hold together: {' '.join(str(error).split())}") from None
    return header, arrays


def read_header(path: Path) -> dict[str, Any]:
    """The header alone."""
    header = _read(path)[1].get("header")
    if not isinstance(header, dict):
        raise BadCheckpoint(f"{path} has no header")
    return header


def _read(path: Path) -> tuple[memoryview, dict[str, Any], int]:
    """A file's bytes, what its head says, and where its arrays begin."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError(errno.ENOENT, "No such file")
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise BadCheckpoint(f"there is no replay checkpoint at {path.parent}: {error.strerror}") from None
    start = len(_MAGIC) + 8
    if len(data) < start + 4 or data[: len(_MAGIC)] != _MAGIC:
        raise BadCheckpoint(f"{path} is not a replay checkpoint of this version, or cut short")
    if zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise BadCheckpoint(f"{path} is damaged: its checksum does not fit its contents")
    size = struct.unpack("<Q", data[len(_MAGIC) : start])[0]
    try:
        head = json.loads(bytes(data[start : start + size]))
    except (ValueError, RecursionError):
        raise BadCheckpoint(f"{path} is damaged: its head cannot be read") from None
    if not isinstance(head, dict):
        raise BadCheckpoint(f"{path} is damaged: its head is not a dict")
    return data, head, start + size


def _dtype(description: Any) -> np.dtype[Any]:
    """From a dtype's `descr`, whose tuples have become lists; one without fields has a single entry without a name."""
    if len(description) == 1 and description[0][0] == "":
        description = description[0][1]
    else:
        description = [tuple(field) for field in description]
    dtype: np.dtype[Any] = np.dtype(description)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"an array has the dtype {dtype}")
    return dtype


def sync_directory(path: Path) -> None:
    """Make a rename or a new file's name survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
