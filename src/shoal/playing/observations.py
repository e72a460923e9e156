"""What the caller of a policy hands over, as the policy wants it: one observation or a batch, checked and converted."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from shoal import tree
from shoal.errors import UserError
from shoal.types import Array


class Observations:
    """Takes observations of a space, one or many at once."""

    def __init__(self, space: Space[Any]) -> None:
        self._space = space
        leaves = tree.leaf_spaces(space, "observation")
        self._leaves = {name: (np.dtype(leaf.dtype), tuple(leaf.shape), _ends(leaf)) for name, leaf in leaves.items()}
        self._only = self._leaves.get("observation") if len(leaves) == 1 else None

    def take(self, observation: Any) -> tuple[Any, bool]:
        """The observation as a batch [B, ...], and whether it was a single one."""
        if self._only is not None:  # the usual case, without a dictionary
            return _taken(observation, *self._only, "observation")
        parts = tree.flatten(observation, "observation")
        if set(parts) != set(self._leaves):
            raise UserError(
                f"The observation has the parts {', '.join(sorted(parts))}, and the policy was trained on "
                f"{', '.join(sorted(self._leaves))}."
            )
        taken = {name: _taken(parts[name], *self._leaves[name], name) for name in self._leaves}
        sizes = {name: None if single else len(array) for name, (array, single) in taken.items()}
        if len(set(sizes.values())) != 1:
            told = ", ".join(f"{name} {'is one' if size is None else f'has {size}'}" for name, size in sizes.items())
            raise UserError(f"The parts of the observation are not of one size: {told}.")
        arrays = {name: array for name, (array, _) in taken.items()}
        return tree.nest(self._space, arrays, "observation"), None in sizes.values()


Ends = tuple[Any, Any]  # the lowest and the highest value


def _ends(leaf: Space[Any]) -> Ends | None:
    """Of a space of choices: beyond them a network has nothing to look up."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return leaf.start, leaf.start + getattr(leaf, "nvec", getattr(leaf, "n", 0)) - 1
    return (0, 1) if isinstance(leaf, spaces.MultiBinary) else None


def _taken(
    value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], ends: Ends | None, name: str
) -> tuple[Array, bool]:
    try:
        array = np.asarray(value)
    except ValueError:
        raise UserError(f"{name} is a list whose parts differ in length: give an array {_shown(shape)}.") from None
    if array.dtype != dtype:
        array = _converted(array, dtype, name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError(f"{name} holds numbers that are not finite: no environment of a run may give such, either.")
    single = array.shape == shape
    if not single and (array.shape[1:] != shape or array.ndim != len(shape) + 1 or not len(array)):
        raise UserError(
            f"{name} has the shape {_shown(array.shape)}: give {_shown(shape)} for one observation, or "
            f"{_shown(('B', *shape))} for a batch of one or more."
        )
    if ends is not None and (np.any(array < ends[0]) or np.any(array > ends[1])):
        raise UserError(f"{name} holds {array.tolist()}: the policy was trained on values from {ends[0]} to {ends[1]}.")
    return (array[np.newaxis], True) if single else (array, False)


def _converted(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    """Whole numbers may be of another width, and may stand for floating point; nothing else changes its meaning."""
    if array.dtype.kind not in "biuf" or (dtype.kind != "f" and array.dtype.kind == "f"):
        raise UserError(f"{name} is {array.dtype}: the policy was trained on {dtype}.")
    converted = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, array):
        raise UserError(f"{name} has values that {dtype}, on which the policy was trained, cannot hold.")
    return converted


def _shown(shape: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
