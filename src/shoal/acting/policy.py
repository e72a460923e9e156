"""What a policy is: three methods that every one has, and what some have beside them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from shoal.types import Array, Arrays, Columns

LAST_REWARD = "last_reward"  # in the state of a policy that wants to know what its last actions gave


class Policy(Protocol):
    """What acts. `state` is what a recurrent policy carries from row to row; empty for a feed-forward one.

    A policy that wants to know what its last actions gave has `LAST_REWARD`, float32 [B], in its state: it is filled in
    by who steps the environments.
    """

    def initial_state(self, count: int) -> Columns: ...
    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        """observation [B, ...] nested as its space, state [B, ...], first bool [B]: where an episode begins.

        Returns actions [B, ...] as the environment takes them, the state after them, and columns to be recorded.
        """

    def load(self, weights: Arrays) -> None: ...


@runtime_checkable
class PerEnvironment(Protocol):
    """A policy that explores differently from environment to environment."""

    def set_environments(self, environments: Array) -> None:
        """The rows of the coming calls of `act` are these environments, int [B], counted over all actors of a run."""


@runtime_checkable
class GivesPriorities(Protocol):
    """A policy that gives items their first priorities, from what it knew when it acted."""

    @property
    def priority_columns(self) -> tuple[str, ...]: ...  # what `priorities` reads, beside reward, terminated and valid
    @property
    def transient(self) -> tuple[str, ...]: ...  # those columns among them that are not worth storing
    def priorities(self, data: Columns) -> Array:
        """One for each of the items whose columns, as a sample has them, are given: [items]. Any thread may call it."""
