"""Which observations are images: convolutions are built for them, frames of them are stacked, presets go by them."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

SMALLEST = 5  # pixels of a side, which two small convolutions need


def is_image(space: object) -> bool:
    """Numbers on three axes, of which the smallest may be channels; bytes on two; or a stack of images, one axis more
    in front. Their sides have at least five pixels."""
    if not isinstance(space, spaces.Box):
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= SMALLEST
    return len(space.shape) in (3, 4) and sorted(space.shape[-3:])[1] >= SMALLEST
