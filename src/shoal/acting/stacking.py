"""Frame stacks while acting: environments give frames one by one, a policy sees the newest few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal import tree
from shoal.replay.frames import FrameStack
from shoal.types import Array


class Stacker:
    """Keeps the newest frames of a vector of environments, for those parts of an observation that are stacked."""

    def __init__(self, stacks: Mapping[str, int]) -> None:  # columns, and of how many frames
        self._stacks = {name: FrameStack(count) for name, count in stacks.items()}

    def push(self, observation: Any, first: Array) -> Any:
        """What a policy sees: observation [B, ...] with stacks [B, count, ...] in the place of frames, which are the
        stacker's own until the next push. `first` bool [B]: where an episode begins."""
        return self._each("push", observation, first)

    def peek(self, observation: Any, first: Array) -> Any:
        """What `push` would return, as a copy; nothing is kept."""
        return self._each("peek", observation, first)

    def state_dict(self) -> dict[str, Any]:
        return {name: stack.state_dict() for name, stack in self._stacks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, stack in self._stacks.items():
            stack.load_state_dict(state[name])

    def _each(self, method: str, observation: Any, first: Array) -> Any:
        parts = tree.flatten(observation, "observation")
        for name, stack in self._stacks.items():
            parts[name] = getattr(stack, method)(parts[name], first)
        return tree.unflatten(parts, "observation")
