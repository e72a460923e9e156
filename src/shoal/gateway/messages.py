"""What messages say: who a client is, what it observed, and what is answered. Read field by field; nothing is trusted.

docs/protocol.md is the specification, byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from gymnasium import Space, spaces

from shoal import tree
from shoal.envs.check import image_stacks
from shoal.envs.space_records import Record, from_record, to_record
from shoal.gateway.wire import Message, WireError
from shoal.types import Array

PROTOCOL = 1
MOST_ENVIRONMENTS = 4096  # of one client
LONGEST_NAME = 128

ClientRole = Literal["environment", "evaluator", "player"]
Mode = Literal["central", "local"]
Autoreset = Literal["next_step", "same_step"]
Code = Literal["token", "protocol", "message", "spaces", "session", "seq", "full", "rate", "size", "internal"]

_NAME = re.compile(r"[A-Za-z0-9._:-]*")
T = TypeVar("T")


class Refused(Exception):
    """What a client asked for is not to be had, in one sentence that it is told; the connection ends with it unless
    the message alone is refused."""

    def __init__(self, code: Code, sentence: str, *, fatal: bool = True) -> None:
        super().__init__(sentence)
        self.code: Code = code
        self.sentence, self.fatal = sentence, fatal


def error(code: Code, sentence: str, seq: int | None = None) -> Message:
    return {"type": "error", "code": code, "message": sentence} | ({} if seq is None else {"seq": seq})


@dataclass(frozen=True)
class Hello:
    """What a client says of itself before anything else."""

    role: ClientRole = "environment"
    token: str = ""
    session: str = ""  # that it goes on with
    environments: int | None = None  # None: one, whose arrays have no axis for environments
    observation_space: Space[Any] | None = None  # None: those that the server demands
    action_space: Space[Any] | None = None
    autoreset: Autoreset = "next_step"
    mode: Mode = "central"
    seq: int = 0  # the last of its messages that was answered
    stored: int = 0  # the last whose experience it was told to be stored
    text_keys: bool = False
    name: str = ""

    @property
    def count(self) -> int:
        return self.environments or 1

    @staticmethod
    def read(message: Message) -> Hello:
        """Of a message whose type is hello."""
        protocol = whole(message, "protocol", 0, 1 << 31)
        if protocol != PROTOCOL:
            raise Refused("protocol", f"this server speaks version {PROTOCOL} of the protocol, and not {protocol}")
        observation, action = _spaces(message)
        environments = message.get("environments")
        return Hello(
            role=cast(ClientRole, word(message, "role", get_args(ClientRole), "environment")),
            token=text(message, "token", 4096),
            session=name(message, "session"),
            environments=None if environments is None else whole(message, "environments", 1, MOST_ENVIRONMENTS),
            observation_space=observation,
            action_space=action,
            autoreset=cast(Autoreset, word(message, "autoreset", get_args(Autoreset), "next_step")),
            mode=cast(Mode, word(message, "mode", get_args(Mode), "central")),
            seq=whole(message, "seq", 0, 1 << 62, 0),
            stored=whole(message, "stored", 0, 1 << 62, 0),
            text_keys=truth(message, "text_keys"),
            name=name(message, "name"),
        )


# ---- single fields: any of them may be anything, arrays too, of which a comparison says nothing


def kind_of(message: Message) -> str:
    """What a message says that it is; "" where it says nothing, or no word."""
    kind = message.get("type")
    return kind if type(kind) is str else ""


def whole(message: Message, field: str, least: int, most: int, default: int | None = None) -> int:
    value = message.get(field, default)
    if type(value) is not int or not least <= value <= most:
        raise WireError(f"{field!r} must be a whole number from {least} to {most}, and is {value!r:.40}")
    return value


def truth(message: Message, field: str, default: bool = False) -> bool:
    value = message.get(field, default)
    if type(value) is not bool:
        raise WireError(f"{field!r} must be true or false, and is {value!r:.40}")
    return value


def text(message: Message, field: str, longest: int) -> str:
    value = message.get(field)
    if value is None:
        return ""
    if type(value) is not str or len(value) > longest:
        raise WireError(f"{field!r} must be a string of at most {longest} characters")
    return value


def name(message: Message, field: str) -> str:
    value = text(message, field, LONGEST_NAME)
    if not _NAME.fullmatch(value):
        raise WireError(f"{field!r} must be made of letters, digits and . _ : -")
    return value


def word(message: Message, field: str, words: tuple[str, ...], default: str) -> str:
    value = message.get(field, default)
    if type(value) is not str or value not in words:
        raise WireError(f"{field!r} must be one of {', '.join(words)}, and is {value!r:.40}")
    return value


def _spaces(message: Message) -> tuple[Space[Any] | None, Space[Any] | None]:
    given = message.get("spaces")
    if given is None:
        return None, None
    if not isinstance(given, Mapping) or set(given) != {"observation", "action"}:
        raise WireError("'spaces' must hold the records of 'observation' and of 'action'")
    return read_space(given["observation"]), read_space(given["action"])


def read_space(record: Any) -> Space[Any]:
    """A space out of its record, in which bounds may be arrays."""
    try:
        _check_record(record, 0)
        return from_record(_without_arrays(record))
    except (ValueError, MemoryError, RecursionError) as error:
        raise WireError(f"'spaces' holds what is no record of a space ({str(error)[:200]})") from None


def write_spaces(observation: Space[Any], action: Space[Any]) -> dict[str, Record]:
    return {"observation": to_record(observation), "action": to_record(action)}


MOST_NUMBERS = 1 << 26  # of one part of an observation or an action
MOST_CHOICES = 1 << 20


def _check_record(record: Any, depth: int) -> None:
    """Sizes, before any array of these sizes is made."""
    if not isinstance(record, Mapping) or depth > 16:
        raise ValueError("a record is a map, at most 16 deep")
    if "parts" in record:
        parts = record["parts"]
        for part in parts.values() if isinstance(parts, Mapping) else parts if isinstance(parts, list) else ():
            _check_record(part, depth + 1)
    shape, left = record.get("shape", []), MOST_NUMBERS
    if not isinstance(shape, list) or len(shape) > 16:
        raise ValueError("a shape is a list of at most 16 sizes")
    for size in shape:
        if type(size) is not int or not 0 <= size <= left:
            raise ValueError(f"a shape has at most {MOST_NUMBERS:,} numbers")
        left //= max(size, 1)
    nvec = record.get("nvec", [])
    for count in (record.get("n", 1), *(nvec if isinstance(nvec, list) else [])):
        if type(count) is not int or not 0 < count <= MOST_CHOICES:
            raise ValueError(f"there are 1 to {MOST_CHOICES:,} choices")
    if "dtype" in record and record["dtype"] not in _BOX_DTYPES:
        raise ValueError(f"a box of {record['dtype']!r:.40} is refused")


_BOX_DTYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)


def _without_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_arrays(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_arrays(part) for part in value]
    return value.ravel().tolist() if isinstance(value, np.ndarray) else value


# ---- what was observed, and what to do


class RowReader:
    """Reads what one client sends of its environments: every part has the shape and kind that the space says, numbers
    are finite, and one environment without an axis of its own is a vector of one."""

    def __init__(self, space: Space[Any], environments: int | None, stack: int = 1) -> None:
        """`space` is what a policy sees; where it sees stacks, clients send single frames."""
        self._space, self._batch = space, environments
        self.count = environments or 1
        stacks = image_stacks(space, stack, stacked=True)
        leaves = tree.leaf_spaces(space, "observation")
        shapes = {key: leaf.shape[1:] if key in stacks else leaf.shape for key, leaf in leaves.items()}
        self._leaves = {key: (leaf, np.dtype(leaf.dtype), (self.count, *shapes[key])) for key, leaf in leaves.items()}

    def observation(self, value: Any) -> tree.Tree:
        return self._read(self._space, value, "observation")

    def numbers(self, message: Message, field: str) -> Array:
        """Float32 [B], 0 where nothing is said."""
        value = message.get(field)
        if self._batch is None and type(value) is float and -_LARGE < value < _LARGE:  # as nearly always
            return np.array((value,), np.float32)
        array = self._flat(message.get(field), field, np.dtype(np.float32))
        if not np.isfinite(array).all():
            raise WireError(f"{field!r} holds NaN or infinity")
        return array

    def truths(self, message: Message, field: str) -> Array:
        """Bool [B], False where nothing is said; not to be written to."""
        value = message.get(field)
        if self._batch is None:
            if value is None or value is False:
                return _NO
            if value is True:
                return _YES
        return self._flat(message.get(field), field, np.dtype(np.bool_))

    def _flat(self, value: Any, field: str, dtype: np.dtype[Any]) -> Array:
        if value is None:
            return np.zeros(self.count, dtype)
        array = _as_array(value, field)
        if self._batch is None:
            array = array.reshape(1) if array.size == 1 else array
        if array.shape != (self.count,) or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise WireError(
                f"{field!r} must be {self.count} of {dtype}, and is {array.dtype} of shape {list(array.shape)}"
            )
        return _cast(array, dtype)

    def _read(self, space: Any, value: Any, place: str) -> tree.Tree:
        parts = getattr(space, "spaces", None)
        if isinstance(parts, Mapping):
            if not isinstance(value, Mapping) or value.keys() != parts.keys():
                raise WireError(f"{place!r} must be a map of {', '.join(map(str, parts))}")
            return {key: self._read(part, value[key], f"{place}/{key}") for key, part in parts.items()}
        if isinstance(parts, tuple | list):
            if not isinstance(value, list) or len(value) != len(parts):
                raise WireError(f"{place!r} must be a list of {len(parts)} parts")
            return tuple(self._read(part, value[i], f"{place}/{i}") for i, part in enumerate(parts))
        return self._leaf(value, place)

    def _leaf(self, value: Any, place: str) -> Array:
        space, dtype, shape = self._leaves[place]
        array = value if type(value) is np.ndarray else _as_array(value, place)
        if self._batch is None:
            array = array[np.newaxis]
        if array.shape != shape:
            asked, got = (list(shape), list(array.shape)) if self._batch else (list(shape[1:]), list(array.shape[1:]))
            raise WireError(f"{place!r} has shape {got}, but must have {asked}")
        if array.dtype != dtype:
            if not np.can_cast(array.dtype, dtype, "same_kind"):
                raise WireError(f"{place!r} has the numbers {array.dtype}, but must have {dtype}")
            array = _cast(array, dtype)
        if dtype.kind == "f" and not _finite(array):
            raise WireError(f"{place!r} holds NaN or infinity")
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            beyond = space.start + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
            if np.any(array < space.start) or np.any(array >= beyond):
                raise WireError(f"{place!r} is outside of its space {space}")
        elif isinstance(space, spaces.MultiBinary) and np.any(array > 1):
            raise WireError(f"{place!r} is outside of its space {space}")
        return array if array.flags.writeable else array.copy()  # torch would warn of tensors that share it


_LARGE = 3.4e38  # nearly the largest of float32
_YES, _NO = np.ones(1, np.bool_), np.zeros(1, np.bool_)
_YES.flags.writeable = _NO.flags.writeable = False


def _finite(array: Array) -> bool:
    found = np.isfinite(array)
    return (
        b"\0" not in found.tobytes() if found.size < 1024 else bool(found.all())
    )  # small ones in a quarter of the time


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """What is beyond the numbers of `dtype` becomes infinite, and is refused as such."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _as_array(value: Any, place: str) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, bool | int | float | list | np.generic):
        raise WireError(f"{place!r} is missing, or is no array")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise WireError(f"{place!r} is no array: its lists have different lengths, or its numbers no kind") from None
    if array.dtype.kind not in "biuf":
        raise WireError(f"{place!r} holds what is no number")
    return array
