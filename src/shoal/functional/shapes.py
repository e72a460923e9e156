"""Shapes of a law's arguments: what broadcasting would make of wrong ones looks like learning that does not work."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def check_shapes(shape: Sequence[int], **tensors: Tensor) -> None:
    """Each of the named tensors has this shape, or the first that has not is named. A microsecond for four."""
    for name, tensor in tensors.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has the shape {list(tensor.shape)} where {list(shape)} is needed")
