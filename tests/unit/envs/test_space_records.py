"""Spaces as JSON and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import Space, spaces

from shoal.envs.space_records import from_record, to_record

SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3], start=[1, 0]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (), np.float32),
    spaces.Box(np.array([-1.5, -np.inf]), np.array([np.inf, 2.5]), dtype=np.float64),
    spaces.Box(0.1, 0.7, (0,), np.float32),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-1.0, 1.0, (1,)), spaces.MultiBinary(2)])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_the_same_after_a_file(space: Space[object]) -> None:
    found = from_record(json.loads(json.dumps(to_record(space), allow_nan=False)))
    assert found == space
    assert getattr(found, "dtype", None) == getattr(space, "dtype", None)


@pytest.mark.parametrize(
    "record", [{}, {"kind": "box"}, {"kind": "discrete", "n": 0, "start": 0}, {"kind": "dict", "parts": 3}]
)
def test_what_is_no_space_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no space"):
        from_record(record)
