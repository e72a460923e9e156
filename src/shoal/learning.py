"""What learns and what it reads: a `Learner` takes batches from a `Source` and answers each with an `Update`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

import torch
from torch import Tensor, nn

from shoal.batches import Batch
from shoal.state import Scope, State
from shoal.versions import NONE

Measured = dict[str, SupportsFloat]  # numbers by name, or what gives one when it is read


@dataclass(frozen=True)
class Update:
    """What came of one update."""

    metrics: Mapping[str, SupportsFloat]  # numbers, or what gives one when it is read
    priorities: Tensor | None = None  # [items]: how surprising each was, for a source that draws by it
    applied: bool = True  # False where it was refused, because loss or gradient were not finite
    note: str | None = None  # a sentence for the user
    waited: float = 0.0  # seconds of it, for other nodes


class Learner(Protocol):
    """What learns. `network` is published.

    With `state_dict` and `load_state_dict` it goes on where it was after a restart; without, from its weights.
    """

    @property
    def network(self) -> nn.Module: ...
    def update(self, batch: Batch) -> Update: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class Learning:
    """A learner and where it stands, as its source sees it; whoever drives the learner keeps it up to date.

    `learner.network` is the one that is trained: a source may act with it to make its next batch.
    """

    learner: Learner
    device: torch.device  # where batches are wanted
    seed: int = 0
    rank: int = 0  # among the `learners` that update together, each with its share of every batch
    learners: int = 1
    largest: Callable[[float], float] = float  # of all learners' values; all of them ask, in the same order
    idle: Callable[[], None] = lambda: None  # to be called now and then by a source that waits for others
    updates: int = 0  # made so far, in all lives
    generation: int = 0  # rises with every restart of the learner
    begun: int = 0  # the updates with which this generation began
    published: int = NONE  # the newest version of the weights


@dataclass(frozen=True)
class Taken:
    """A batch to learn from."""

    batch: Batch
    transitions: int  # that an update with it trains
    items: Any = None  # what tells the source which items they are, when it is given back


class Source(Protocol):
    """Where a learner's batches come from. It is made by a function of the `Learning` that it serves.

    `take` is all that it needs; who inherits from this class has the rest. Each batch is waited for, taken, learned
    from and perhaps measured, in this order; its memory may be used again for the next one.
    """

    activity: str = "learning"  # what the time of `take` is told as

    def wait(self) -> None:
        """Return when `take` has something to give. What is asked for ahead of time is asked for here; until the wait
        is over nothing may have changed that a second `wait` would miss."""

    def take(self) -> Taken:
        """The next batch."""
        ...

    def learned(self, taken: Taken, update: Update) -> None:
        """What came of a batch."""

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        """Numbers for the report: what it holds, and how old a batch was. Asked for when a report is due."""
        return {}

    def counts(self) -> Mapping[str, float]:
        """What it has counted in this life: items that were lost, say; with "env_steps", those that it made itself."""
        return {}

    def notes(self) -> Sequence[str]:
        """Sentences for the user that have not been told yet."""
        return ()

    def state_dict(self, scope: Scope = "own") -> State:
        """Where it stands. "own": what it needs to go on by itself; "exact": to go on to the last bit with all nodes of
        the same moment."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""


MakeSource = Callable[[Learning], Source]
