"""One row of a vector of environments as a value: what an action gave, and what the row means."""

from __future__ import annotations

from typing import NamedTuple

from shoal.tree import Tree
from shoal.types import Values


class Step(NamedTuple):
    """What one action per environment gave: numpy arrays, or tensors of one device.

    An environment may reset in a step of its own (Gymnasium's NEXT_STEP): the observation of the row that ends an
    episode is then the final one, and the row after it is a `reset`. Or it resets within the step that ends an episode
    (SAME_STEP): the observation is then the next episode's first, and the final one has a field of its own.
    """

    observation: Tree  # [B, ...], or a dict or tuple of such; None where the receiver has it already
    reward: Values  # float32 [B]
    terminated: Values  # bool [B], the episode ended: nothing follows
    truncated: Values  # bool [B], the episode was cut: what would follow is worth something
    reset: Values  # bool [B], no transition: the action was ignored and the observation begins an episode
    final_observation: Tree = None  # [B, ...] of SAME_STEP, of meaning where an episode ended
    alive: Values | None = None  # bool [B], False for an agent that takes no part; None: all do
    action_mask: Values | None = None  # bool [B, actions], what may be chosen next; None: everything

    @property
    def valid(self) -> Values:
        """Which rows are transitions, bool [B]."""
        return ~self.reset if self.alive is None else ~self.reset & self.alive

    @property
    def begins(self) -> Values:
        """Where the observation is the first of an episode, bool [B]."""
        return self.reset if self.final_observation is None else self.reset | self.terminated | self.truncated
