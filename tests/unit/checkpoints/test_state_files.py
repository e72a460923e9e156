"""States in files: they come back exactly, and files that were not written so are refused."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.checkpoints import DamagedCheckpoint
from shoal.checkpoints.state_files import DEEPEST, read_state, write_state


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other, equal_nan=False)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(part, other[key]) for key, part in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def round_trip(folder: Path, state: Any) -> Any:
    write_state(folder / "part", state)
    return read_state(folder / "part")


EVERYTHING = {
    "none": None,
    "flags": [True, False],
    "numbers": (1, -7, 2**127 + 3, 0.1, -0.0, math.nan, math.inf, -math.inf, 5e-324),
    "text": 'naïve "quotes"\n\0',
    "bytes": b"\x00\xff raw",
    "no bytes": b"",
    "dtypes": [np.arange(2, dtype=kind) for kind in ("i1", "u2", "u4", "i8", "u8", "f2", "f4", "f8", "?")],
    "scalars": (np.float32(0.1), np.int64(-3), np.bool_(True), np.float64(0.1)),
    "empty": [np.zeros((0, 3), np.float32), [], (), {}],
    "torch.optim.Adam": {  # its state has whole numbers as keys, and tuples
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2)}},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "amsgrad": False, "foreach": None, "params": [0]}],
    },
    "tensors": {"a": torch.randn(2, 3), "half": torch.randn(4).bfloat16(), "count": torch.tensor(7)},
    "generator": np.random.default_rng(3).bit_generator.state,
    "old generator": np.random.Generator(np.random.MT19937(5)).bit_generator.state,
    "torch generator": torch.Generator().manual_seed(4).get_state(),
    "a/b": np.ones(2),
    "a": {"b": np.zeros(3)},  # would have the same name in the file
}


def test_every_kind_of_value_comes_back_exactly(tmp_path: Path) -> None:
    assert same(round_trip(tmp_path, EVERYTHING), EVERYTHING)
    for bare in (3, np.ones(2), None, [1], torch.ones(1)):
        assert same(round_trip(tmp_path, bare), bare)


def test_parameters_that_are_views_of_one_tensor_and_shared_ones_are_written(tmp_path: Path) -> None:
    flat = torch.arange(10.0)
    state = {"flat": flat, "view": flat[2:6].view(2, 2), "transposed": flat[:4].view(2, 2).t(), "same": flat}
    assert same(round_trip(tmp_path, state), {**state, "transposed": state["transposed"].contiguous()})


def test_a_generator_that_was_saved_goes_on(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    random.standard_normal(5)
    state = round_trip(tmp_path, random.bit_generator.state)
    expected = random.standard_normal(5)
    other = np.random.default_rng(2)
    other.bit_generator.state = state
    assert np.array_equal(other.standard_normal(5), expected)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"learner": {"loss": lambda: 0}}, "learner/loss is a function"),
        ({"a": {1.5}}, "a is a set"),
        ({"a": np.array([object()])}, "a is an array of object"),
        ({"a": {(1, 2): 3}}, r"a has the key \(1, 2\)"),
        ({"a": {True: 3}}, "a has the key True"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, state: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        write_state(tmp_path / "part", state)


def test_endless_nesting_is_refused_and_not_recursed_into(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="levels deep"):
        write_state(tmp_path / "part", endless)


DESCRIPTIONS = [
    '{"list": 3}',
    '{"call": ["os.system", "true"]}',
    '{"list": [], "tuple": []}',
    "[]",
    "{}",
    '{"dict": [["a"]]}',
    '{"dict": [[["a"], 1]]}',
    '{"dict": [["a", 1], ["a", 2]]}',
    '{"dict": [[true, 1]]}',
    '{"float": "1e3"}',
    '{"float": 3}',
    "NaN",
    '{"tensor": "missing"}',
    '{"tensor": 5}',
    '{"scalar": "x"}',
    '{"bytes": "x"}',
    '{"list": [{"array": "x"}, {"array": "x"}]}',
    '{"list": ' * (DEEPEST + 2) + "3" + "}" * (DEEPEST + 2),
    "[" * 100_000,
    "9" * 10_000,
    "",
    "\x00",
    '{"list": [',
]


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda text: repr(text[:30]))
def test_descriptions_that_were_never_written_are_refused(tmp_path: Path, description: str) -> None:
    write_state(tmp_path / "part", np.ones(2, np.float32))
    (tmp_path / "part.json").write_text(description.replace('"x"', '"state"'))
    with pytest.raises(DamagedCheckpoint, match="damaged"):
        read_state(tmp_path / "part")


def header(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


FOUR = b"\0" * 16
FILES = [
    b"",
    b"\x80\x04K\x01.",  # a pickle
    struct.pack("<Q", 2**63) + b"{}",
    struct.pack("<Q", 2**40) + b"{}",
    header(b"not json"),
    header(b'{"state": {"dtype": "F32", "shape": [4], "data_offsets": [0, 99]}}', FOUR),
    header(b'{"state": {"dtype": "F32", "shape": [99], "data_offsets": [0, 16]}}', FOUR),
    header(b'{"state": {"dtype": "O", "shape": [4], "data_offsets": [0, 16]}}', FOUR),
    header(b'{"state": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}', FOUR),
    header(b'{"state": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}', FOUR),
    header(b'{"state": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 16]}}', FOUR),
    header(b'{"other": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', FOUR),
]


@pytest.mark.parametrize("content", FILES, ids=lambda content: repr(content[:40]))
def test_tensor_files_that_were_never_written_are_refused(tmp_path: Path, content: bytes) -> None:
    write_state(tmp_path / "part", np.ones(4, np.float32))
    (tmp_path / "part.safetensors").write_bytes(content)
    with pytest.raises(DamagedCheckpoint):
        read_state(tmp_path / "part")


def test_a_tensor_that_nothing_refers_to_is_damage(tmp_path: Path) -> None:
    write_state(tmp_path / "part", {"a": np.ones(2), "b": np.ones(2)})
    (tmp_path / "part.json").write_text(json.dumps({"dict": [["a", {"array": "a"}]]}))
    with pytest.raises(DamagedCheckpoint, match="nothing refers to 'b'"):
        read_state(tmp_path / "part")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    write_state(tmp_path / "part", 3)
    for name in ("part.json", "part.safetensors"):
        path = tmp_path / name
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(DamagedCheckpoint, match=r"part.*(cannot be read|damaged)"):
            read_state(tmp_path / "part")
        path.write_bytes(kept)


def test_flipped_bits_never_raise_anything_else(tmp_path: Path) -> None:
    """The store's checksums find them all; here they may only change values or be refused, never crash."""
    write_state(tmp_path / "part", EVERYTHING)
    random = np.random.default_rng(0)
    for name in ("part.json", "part.safetensors"):
        path = tmp_path / name
        whole = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(whole)
            damaged[random.integers(min(len(damaged), 3000))] ^= 1 << random.integers(8)
            path.write_bytes(bytes(damaged))
            try:
                read_state(tmp_path / "part")
            except DamagedCheckpoint:
                pass
        path.write_bytes(whole)


def test_three_tensors_whose_places_read_alike_are_kept_apart(tmp_path: Path) -> None:
    one, two, three = (torch.tensor([float(number)]) for number in range(3))
    write_state(tmp_path / "part", {"a/b/c": one, "a": {"b/c": two, "b": {"c": three}}})
    found = read_state(tmp_path / "part")
    assert [found["a/b/c"].item(), found["a"]["b/c"].item(), found["a"]["b"]["c"].item()] == [0.0, 1.0, 2.0]
