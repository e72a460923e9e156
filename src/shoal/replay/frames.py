"""Frame stacks: which stored frames make up a stack, the same when acting and when a batch is gathered.

Frames are stored once. The stack of a row is its own frame and the ones before it, oldest first, on a new axis before
the frame's own. An episode's first rows have fewer frames before them: the first frame is repeated in their place
("repeat", as Gymnasium's FrameStackObservation does), or zeros are put there ("zero").
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from shoal.types import Array

Padding = Literal["repeat", "zero"]


def stack_positions(position: Array, first: Array | int, count: int) -> tuple[Array, Array]:
    """Rows of the frames in the stacks of rows `position`, whose episodes begin at rows `first`: [..., count].

    Also which of them are padding: those hold the episode's first row.
    """
    rows = position[..., None] + np.arange(1 - count, 1)
    start = np.asarray(first)[..., None]
    return np.maximum(rows, start), rows < start


class FrameStack:
    """Stacks for acting: give it each step's frames and which of them begin an episode."""

    def __init__(self, count: int, padding: Padding = "repeat") -> None:
        self.count = count
        self.padding: Padding = padding
        self._frames: Array | None = None  # [environments, count, ...]
        self._seen: Array | None = None  # frames since the episode began, [environments]

    def push(self, frames: Array, first: Array) -> Array:
        """frames [B, ...], first bool[B] -> stacks [B, count, ...]."""
        if self._frames is None or self._seen is None:
            self._frames = np.zeros((len(frames), self.count, *frames.shape[1:]), frames.dtype)
            self._seen = np.zeros(len(frames), np.int64)
        self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = frames
        self._seen = np.where(first, 0, self._seen + 1)
        # the newest frame sits at count - 1, so the episode began at count - 1 - seen
        newest = np.full(len(frames), self.count - 1)
        rows, padded = stack_positions(newest, np.maximum(newest - self._seen, 0), self.count)
        stacks: Array = self._frames[np.arange(len(frames))[:, None], rows]
        if self.padding == "zero":
            stacks[padded] = 0
        return stacks
