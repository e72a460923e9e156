"""Layers of a policy as bytes for clients that act by themselves: safetensors, which cannot run code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors.numpy import save

from shoal.types import Array


def pack_layers(layers: Sequence[tuple[Array, Array]]) -> bytes:
    """Weights [m, n] and biases [m] by the names 0.weight, 0.bias, 1.weight, …, float32."""
    named: dict[str, Array] = {}
    for index, (weight, bias) in enumerate(layers):
        named[f"{index}.weight"] = np.ascontiguousarray(weight, np.float32)
        named[f"{index}.bias"] = np.ascontiguousarray(bias, np.float32)
    return save(named)
