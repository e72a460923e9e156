"""What a policy is: three methods that every one has, and what some have beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from shoal.types import Array, Arrays, Columns, Values

LAST_REWARD = "last_reward"  # in the state of a policy that wants to know what its last actions gave
State = dict[
    str, Values
]  # what a recurrent policy carries from row to row, each [B, ...]; empty for a feed-forward one
Acted = tuple[Values, State, State]  # actions [B, ...], the state after them, columns to be recorded


class Policy(Protocol):
    """What acts, on arrays or on tensors of one device: it answers in what it is given.

    A policy that wants to know what its last actions gave has `LAST_REWARD`, float32 [B], in its state: it is filled in
    by who steps the environments.
    """

    def initial_state(self, count: int) -> State: ...
    def act(self, observation: Any, state: State, first: Values) -> Acted:
        """observation [B, ...] nested as its space, first bool [B]: where an episode begins, state [B, ...]: there it
        is zero, whoever carries it (`Player`) has seen to that.

        Returns actions [B, ...] as the environment takes them, the state after them, and columns to be recorded.
        """

    def load(self, weights: Arrays) -> None: ...


@runtime_checkable
class PerEnvironment(Protocol):
    """A policy that explores differently from environment to environment."""

    def set_environments(self, environments: Array, total: int) -> None:
        """The rows of the coming calls of `act` are these environments, int [B], of `total`, counted over all actors of
        a run. Told again when actors have come or gone."""


@dataclass(frozen=True)
class FirstPriorities:
    """How items get their first priorities, from what a policy knew when it acted."""

    law: Callable[[Columns], Array]  # columns of items, as a sample has them → [items]; any thread may call it
    columns: tuple[str, ...]  # what the law reads, beside reward, terminated and valid
    transient: tuple[str, ...] = ()  # those among them that are not worth storing


@runtime_checkable
class GivesPriorities(Protocol):
    """A policy that gives items their first priorities; None: it gives none."""

    @property
    def first_priorities(self) -> FirstPriorities | None: ...


class Choice(NamedTuple):
    """What a policy prefers to do."""

    action: Values  # [B, ...] as the environment takes it
    scores: Values  # [B, ...] what it was chosen by
    state: State  # after it
