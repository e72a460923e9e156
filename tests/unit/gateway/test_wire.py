"""Messages as bytes: what goes out comes back, openpi's encoding to the byte, and nothing that strangers send is large,
strange or code."""

from __future__ import annotations

import random
import re
import tracemalloc
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from gymnasium import spaces

from shoal.gateway.messages import Hello, Refused, RowReader, kind_of, read_space, write_spaces
from shoal.gateway.wire import WireError, pack, unpack


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "u4", "i8", "f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("text_keys", [False, True])
def test_arrays_come_back_as_they_were(dtype: str, shape: tuple[int, ...], text_keys: bool) -> None:
    array = np.ones(shape, dtype)
    found = unpack(pack({"a": array}, text_keys))["a"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")


def test_an_array_is_encoded_as_openpi_does_it() -> None:
    array = np.arange(3, dtype=np.float32)
    expected = {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<f4", b"shape": [3]}
    assert msgpack.unpackb(pack({"observation": array})) == {"observation": expected}
    number = {b"__npgeneric__": True, b"data": 2.5, b"dtype": "<f4"}
    assert unpack(msgpack.packb({"reward": number})) == {"reward": np.float32(2.5)}


def array(dtype: Any = "<f4", data: Any = b"\0" * 4, shape: Any = (1,)) -> bytes:
    map_: dict[Any, Any] = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}
    return bytes(msgpack.packb({"observation": map_}))


HOSTILE = {
    "nothing": b"",
    "garbage": b"\xc1\xff\x00garbage",
    "truncated": array()[:-3],
    "more than one": array() + b"\x01",
    "a number": b"\x01",
    "numbers for keys": msgpack.packb({1: 2}),
    "an endless list": b"\xdd\xff\xff\xff\xff",
    "an endless map": b"\xdf\xff\xff\xff\xff",
    "deep lists": b"\x91" * 100_000,
    "deep preallocated lists": b"\xdc\x10\x00" * 1000,
    "a million empty maps": b"\x81\xa1a" + (b"\xdc\x10\x00" + b"\x80" * 4096) * 200,
    "many lists of empty maps": b"\x81\xa1a\xdc\x01\x00" + (b"\xdc\x10\x00" + b"\x80" * 4096) * 256,
    "an extension": b"\x81\xa1a\xc7\x01\x05a",
    "a timestamp": b"\x81\xa1a\xd6\xff\0\0\0\0",
    "text that is none": b"\x81\xa1a\xa2\xff\xff",
    "objects": array("|O"),
    "records": array("|V4"),
    "complex numbers": array("<c8", b"\0" * 8),
    "strings": array("<U1"),
    "dates": array("<M8[s]", b"\0" * 8),
    "a list for a dtype": array([["a", "<f4"]]),
    "a dtype with code in it": array("f4,O"),
    "too little data": array(shape=(2,)),
    "a shape that overflows": array(data=b"", shape=(1 << 62, 4, 0)),
    "a negative shape": array(shape=(-1,)),
    "a shape of floats": array(shape=(1.0,)),
    "no shape": array(shape=None),
    "data that is text": array(data="aaaa"),
    "too many axes": array(shape=(1,) * 65),
    "a number that does not fit": msgpack.packb({"a": {b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_message_is_refused_without_much_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_a_bool_is_true_or_false_whatever_its_byte_is() -> None:
    found = unpack(array("|b1", b"\x00\x01\x02\xff", (4,)))["observation"]
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]


SPACE = spaces.Dict(
    {
        "place": spaces.Box(-1.0, 1.0, (2,)),
        "picture": spaces.Box(0, 255, (3, 3), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(4, start=1), spaces.MultiBinary(2)]),
    }
)


def observed(**changes: Any) -> dict[str, Any]:
    pair = [np.int64(2), np.ones(2, np.int8)]
    return {"place": np.zeros(2), "picture": np.zeros((3, 3), np.uint8), "pair": pair} | changes


def test_observations_are_read_as_their_space_says() -> None:
    found = RowReader(SPACE, None).observation(unpack(pack({"o": observed()}))["o"])
    assert found["place"].shape == (1, 2)
    assert found["place"].dtype == np.float32
    assert found["pair"][0].tolist() == [2]
    many = RowReader(SPACE["place"], 3).observation(np.zeros((3, 2), np.float32))
    assert many.shape == (3, 2)
    assert RowReader(SPACE["place"], None).observation([0.5, 1]).tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"place": np.zeros(3)}, "'observation/place' has shape"),
        ({"place": np.array([np.nan, 0])}, "NaN or infinity"),
        ({"place": np.array([1e300, 0])}, "NaN or infinity"),
        ({"place": "here"}, "'observation/place' is missing, or is no array"),
        ({"place": ["here", "there"]}, "holds what is no number"),
        ({"place": [[0.0], [0.0, 1.0]]}, "is no array"),
        ({"picture": np.zeros((3, 3), np.int64)}, "must have uint8"),
        ({"pair": [np.int64(5), np.zeros(2, np.int8)]}, "outside of its space"),
        ({"pair": [np.int64(1), np.full(2, 7, np.int8)]}, "outside of its space"),
        ({"pair": []}, "must be a list of 2 parts"),
        ({"more": 1}, "must be a map of"),
    ],
)
def test_an_observation_outside_of_its_space_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WireError, match=said):
        RowReader(SPACE, None).observation(observed(**changes))


def test_rewards_and_ends_are_one_number_for_each_environment() -> None:
    reader = RowReader(SPACE["place"], 2)
    assert reader.numbers({"reward": np.array([1, 2])}, "reward").tolist() == [1.0, 2.0]
    assert reader.truths({}, "terminated").tolist() == [False, False]
    for field, value in (("reward", [1.0]), ("reward", [np.nan, 0.0]), ("terminated", [0.5, 1.0]), ("reward", "a")):
        with pytest.raises(WireError, match=field):
            (reader.numbers if field == "reward" else reader.truths)({field: value}, field)


def test_spaces_travel_as_records() -> None:
    bounds = spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, 2.0], np.float32))
    for space in (SPACE, bounds):
        record = unpack(pack({"spaces": write_spaces(space, spaces.Discrete(2))}))["spaces"]["observation"]
        assert read_space(record) == space
    record = write_spaces(bounds, bounds)["action"] | {"low": np.array([-1.0, -np.inf]), "high": np.array([1.0, 2.0])}
    assert read_space(record) == bounds


@pytest.mark.parametrize(
    "record",
    [
        None,
        {"kind": "box"},
        {"kind": "box", "shape": [1 << 40], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "box", "shape": [1 << 20, 1 << 20], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "box", "shape": [2], "dtype": "object", "low": 0, "high": 1},
        {"kind": "multi_binary", "shape": [1 << 40]},
        {"kind": "dict", "parts": {"a": {"kind": "box", "shape": [1 << 40], "dtype": "uint8", "low": 0, "high": 1}}},
        {"kind": "discrete", "n": -1, "start": 0},
        {"kind": "discrete", "n": 1 << 60, "start": 0},
        {"kind": "multi_discrete", "nvec": [2, 1 << 60], "start": [0, 0]},
        {"kind": "eval", "parts": "os.system"},
    ],
)
def test_a_record_that_is_no_space_is_refused_before_it_is_made(record: Any) -> None:
    with pytest.raises(WireError, match="spaces"):
        read_space(record)


def test_a_hello_is_read_field_by_field() -> None:
    hello = Hello.read({"type": "hello", "protocol": 1, "environments": 3, "role": "evaluator", "seq": 7})
    assert (hello.count, hello.role, hello.seq, hello.mode) == (3, "evaluator", 7, "central")
    with pytest.raises(Refused, match="version 1"):
        Hello.read({"type": "hello", "protocol": 2})
    wrong: list[dict[str, Any]] = [
        {"environments": 0},
        {"environments": 1 << 40},
        {"role": "king"},
        {"session": "../../etc"},
        {"token": 5},
        {"seq": -1},
        {"seq": 1.5},
        {"text_keys": 1},
        {"spaces": {"observation": 1}},
        {"role": ["environment"]},
    ]
    for changes in wrong:
        with pytest.raises(WireError, match=next(iter(changes))):
            Hello.read({"type": "hello", "protocol": 1} | changes)


def test_the_session_of_the_specification_is_what_the_code_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
    recorded = page.partition("```session\n")[2].partition("```")[0]
    messages = [bytes.fromhex("".join(part.split()[1:])) for part in re.split(r"\n(?=[<>])", recorded.strip())]
    read = [unpack(data) for data in messages]
    assert [message["type"] for message in read] == [
        "greeting", "hello", "welcome", "step", "action", "step", "action", "bye"
    ]  # fmt: skip
    assert [pack(message) for message in read] == messages, "to the byte"
    assert Hello.read(read[1]).count == 1
    reader = RowReader(read_space(read[0]["spaces"]["observation"]), None)
    assert reader.observation(read[3]["observation"]).tolist() == [[0.5, -0.25]]
    assert reader.truths(read[5], "terminated").tolist() == [True]


ANYTHING = [
    None,
    -1,
    1 << 62,
    1e300,
    float("nan"),
    "x",
    "é" * 200,
    b"\0",
    [],
    [[1], [2, 3]],
    [None],
    {},
    {"a": 1},
    True,
]
ANYTHING += [np.ones((2, 2)), np.zeros(3, np.uint8)]


def test_whatever_stands_in_a_field_is_taken_or_refused_in_a_sentence() -> None:
    chance = random.Random(0)
    box = {"kind": "box", "shape": [4], "dtype": "float32", "low": "-inf", "high": 1.0}
    parts = {"kind": "dict", "parts": {"a": {"kind": "multi_discrete", "nvec": [2, 3], "start": [0, 0]}}}
    hello = {"type": "hello", "protocol": 1, "role": "environment", "token": "a", "session": "b", "environments": 2}
    hello |= {"autoreset": "next_step", "mode": "central", "seq": 1, "stored": 0, "text_keys": False, "name": "x"}
    reader = RowReader(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 255, (2, 2), np.uint8)}), None)
    refused = 0
    for _ in range(4000):
        spoiled = chance.choice([box, parts])
        spoiled = {**spoiled, chance.choice([*spoiled, "n"]): chance.choice(ANYTHING)}
        said = {**hello, chance.choice(list(hello)): chance.choice(ANYTHING)}
        said["spaces"] = {"observation": spoiled, "action": box} if chance.random() < 0.5 else chance.choice(ANYTHING)
        seen = {"a": chance.choice(ANYTHING), "b": chance.choice(ANYTHING)} if chance.random() < 0.7 else said["role"]
        for read in (Hello.read, lambda _, seen=seen: reader.observation(seen), partial(reader.numbers, field="seq")):
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                    read(said)
            except (WireError, Refused):
                refused += 1
        assert type(kind_of({"type": chance.choice(ANYTHING)})) is str
    assert refused > 4000
