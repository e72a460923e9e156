"""Nested observations and their flat names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal import tree


def test_names_are_joined_with_slashes_and_tuples_are_numbered() -> None:
    nested = {"arm": {"angle": 1, "grip": (2, 3)}, "image": 4}
    assert tree.flatten(nested, "observation") == {
        "observation/arm/angle": 1,
        "observation/arm/grip/0": 2,
        "observation/arm/grip/1": 3,
        "observation/image": 4,
    }
    assert tree.flatten(7, "observation") == {"observation": 7}


@pytest.mark.parametrize(
    "nested",
    [5, {"a": 1}, (1,), ({"x": 1}, (2, 3)), {"a": (1, {"b": 2}), "c": 3}, tuple(range(12)), {"1": 1}],
    ids=str,
)
@pytest.mark.parametrize("name", ["", "observation"])
def test_unflatten_undoes_flatten(nested: Any, name: str) -> None:
    assert tree.unflatten(tree.flatten(nested, name), name) == nested


def test_unflatten_takes_only_what_lies_under_the_name() -> None:
    columns = {"observation/a": 1, "observation_other": 2, "reward": 3, "state/h": 4}
    assert tree.unflatten(columns, "observation") == {"a": 1}
    with pytest.raises(KeyError, match="missing"):
        tree.unflatten(columns, "missing")


def test_map_keeps_the_structure_and_joins_leaves_at_the_same_place() -> None:
    first, second = {"a": (1, 2), "b": 3}, {"a": (10, 20), "b": 30}
    assert tree.map(lambda one, two: one + two, first, second) == {"a": (11, 22), "b": 33}
    assert np.array_equal(tree.map(np.sqrt, np.array([4.0])), [2.0])
