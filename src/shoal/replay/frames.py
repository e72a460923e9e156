"""Frame stacks: which stored frames make up a stack, the same when acting and when a batch is gathered.

Frames are stored once. The stack of a row is its own frame and the ones before it, oldest first, on a new axis before
the frame's own. An episode's first rows have fewer frames before them: the first frame is repeated in their place
("repeat", as Gymnasium's FrameStackObservation does), or zeros are put there ("zero").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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
        self._frames: Array | None = None  # [environments, count, ...], the newest last
        self._seen: Array | None = None  # frames of the episode before the newest, [environments]

    def push(self, frames: Array, first: Array) -> Array:
        """frames [B, ...], first bool[B] -> stacks [B, count, ...], to be read before the next push."""
        held, seen = self._held(frames)
        held[:, :-1] = held[:, 1:]
        held[:, -1] = frames
        self._seen = np.where(first, 0, seen + 1)
        return self._stacks(held, self._seen)

    def peek(self, frames: Array, first: Array) -> Array:
        """What `push` would return, as a copy, without keeping the frames."""
        held, seen = self._held(frames)
        shifted = np.concatenate([held[:, 1:], frames[:, None]], axis=1)
        return self._stacks(shifted, np.where(first, 0, seen + 1))

    def state_dict(self) -> dict[str, Any]:
        if self._frames is None or self._seen is None:
            return {}
        return {"frames": self._frames.copy(), "seen": self._seen.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._frames = np.array(state["frames"]) if state else None
        self._seen = np.array(state["seen"]) if state else None

    def _held(self, frames: Array) -> tuple[Array, Array]:
        if self._frames is None or self._seen is None:
            self._frames = np.zeros((len(frames), self.count, *frames.shape[1:]), frames.dtype)
            self._seen = np.zeros(len(frames), np.int64)
        return self._frames, self._seen

    def _stacks(self, held: Array, seen: Array) -> Array:
        young = (seen < self.count - 1).nonzero()[0]  # whose episodes have fewer frames than a stack
        if not len(young):
            return held
        # the newest frame sits at count - 1, so the episode began at count - 1 - seen
        newest = np.full(len(young), self.count - 1)
        rows, padded = stack_positions(newest, newest - seen[young], self.count)
        stacks = held.copy()
        stacks[young] = held[young[:, None], rows]
        if self.padding == "zero":
            stacks[young[:, None], np.arange(self.count)] *= ~padded.reshape(padded.shape + (1,) * (held.ndim - 2))
        return stacks
