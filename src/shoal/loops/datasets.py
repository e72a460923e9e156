"""Where a learner's batches come from: a dataset that lies on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch

from shoal.batches import to_batch
from shoal.data import Dataset, Items, gather
from shoal.data.ahead import ReadAhead
from shoal.learning import Learning, Source, Taken, Update
from shoal.replay import Pattern
from shoal.replay.sumtree import SumTree
from shoal.state import Scope, State
from shoal.types import Array, Columns

AHEAD = 4  # updates whose items are read before they are wanted, from a dataset that does not fit into memory


class DatasetSource(Source):
    """Items of a dataset, drawn at random with replacement.

    The draws of an update depend on the seed and on the update's number alone: whoever goes on draws what would have
    been drawn. All learners of a group draw the same batch, of which each takes its share, so that together they learn
    what one would. By priority each draws from a part of its own, every so-many-th item, and only it knows how
    surprising those were.
    """

    def __init__(
        self,
        learning: Learning,
        *,
        path: str,
        pattern: Pattern,
        batch: int,  # items per update, of all learners together
        observation_space: Any,
        exponent: float | None = None,  # of priorities; None: all items alike
        beta: float = 0.0,  # with priorities, of the column "importance"
    ) -> None:
        self._learning, self._pattern, self._batch, self._space = learning, pattern, batch, observation_space
        self._data = Dataset(path)
        self._items = Items(self._data, pattern)
        self._ahead = ReadAhead(self._data) if ReadAhead.helps(self._data) else None
        self._asked = -1  # the last update whose items were asked for
        if self._ahead is not None:
            self._data.expect_random_reads()
        self._seed = learning.seed
        rank, learners = learning.rank, learning.learners
        self._share = slice(batch * rank // learners, batch * (rank + 1) // learners)
        self._priorities = None if exponent is None else _Priorities(len(self._items), rank, learners, exponent, beta)

    def wait(self) -> None:
        """It is there."""

    def take(self) -> Taken:
        learning, share = self._learning, self._share
        importance = None
        if self._priorities is None:
            numbers = self._drawn(learning.updates)
            self._read_ahead(learning.updates)
        else:
            random = self._random(learning.updates)
            numbers, importance = self._priorities.draw(share.stop - share.start, random, learning)
        placed = self._items.place(numbers)
        if self._ahead is not None and self._priorities is not None:
            self._ahead.ask(placed)  # nobody could know before
        columns = gather(self._data, self._pattern, placed)
        batch = to_batch(columns, self._space, learning.device)
        if importance is not None:
            batch["importance"] = torch.from_numpy(importance).to(learning.device)
        return Taken(batch, _transitions(columns), numbers)

    def _random(self, update: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, update]))

    def _drawn(self, update: int) -> Array:
        """The items of this learner's share."""
        return self._random(update).integers(0, len(self._items), self._batch)[self._share]

    def _read_ahead(self, update: int) -> None:
        """Have the items of the next updates read, each once."""
        if self._ahead is not None:
            for coming in range(max(update, self._asked) + 1, update + AHEAD + 1):
                self._ahead.ask(self._items.place(self._drawn(coming)))
                self._asked = coming

    def learned(self, taken: Taken, update: Update) -> None:
        if self._priorities is not None and update.priorities is not None:
            self._priorities.set(taken.items, update.priorities.cpu().numpy())

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        return {"dataset_items": len(self._items)}

    def state_dict(self, scope: Scope = "own") -> State:
        state: State = {"seed": self._seed}
        return state if self._priorities is None else state | self._priorities.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seed, self._asked = int(state["seed"]), -1
        if self._priorities is not None:
            self._priorities.load_state_dict(state)


class _Priorities:
    """How surprising each item of a learner's part was when it was drawn last; 1 before that, or the most so far."""

    def __init__(self, items: int, rank: int, learners: int, exponent: float, beta: float) -> None:
        self._items, self._rank, self._learners = items, rank, learners
        self._exponent, self._beta = exponent, beta
        self._own = len(range(rank, items, learners))
        if not self._own:
            raise ValueError(f"{items} items cannot be shared by {learners} learners")
        self._values = np.ones(self._own, np.float32)
        self._tree = SumTree(self._own)
        self._tree.set_range(0, self._own, 1.0)

    def draw(self, count: int, random: np.random.Generator, learning: Learning) -> tuple[Array, Array]:
        own, weights = self._tree.draw(count, random)
        importance = (self._own * weights / self._tree.total) ** -self._beta
        importance = (importance / learning.largest(float(importance.max()))).astype(np.float32)
        return own * self._learners + self._rank, importance

    def set(self, numbers: Array, priorities: Array) -> None:
        own = numbers // self._learners
        self._values[own] = priorities
        self._tree.set(own, self._values[own].astype(np.float64) ** self._exponent)

    def state_dict(self) -> State:
        return {"rank": self._rank, "priorities": self._values.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Those of another learner's part are none of ours."""
        values = np.asarray(state.get("priorities", ()), np.float32)
        if state.get("rank") == self._rank and len(values) == self._own:
            self._values = np.array(values)
            self._tree.set_range(0, self._own, self._values.astype(np.float64) ** self._exponent)


def _transitions(columns: Columns) -> int:
    """How many a batch trains: rows of sequences but the last, which only bootstraps, or one per item."""
    valid = columns.get("valid")
    return int(valid[:-1].sum()) if valid is not None and valid.ndim > 1 else len(columns["reward"])
