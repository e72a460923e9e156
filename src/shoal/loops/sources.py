"""Where a learner's batches come from: a table of a replay service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch

from shoal.batches import Batch
from shoal.learning import Learning, Source, Taken, Update
from shoal.loops.prefetch import Prefetch
from shoal.program import Background, Future, NodeDied, current, futures
from shoal.replay import Replay, Sample
from shoal.state import Scope, State
from shoal.types import Array, Columns
from shoal.versions import generation, number

PATIENCE = 1.0  # seconds after which a learner asks for its data anew, and looks around meanwhile


class TableSource(Source):
    """Samples of one table, asked for ahead of time; how surprising each item was goes back to it."""

    def __init__(
        self,
        learning: Learning,
        *,
        replay: Replay,
        table: str,
        batch: int,  # items per update, of all learners together
        observation_space: Any,
        prefetch: int = 1,
        beta: float | None = None,  # adds a column "importance" [items]: the weights of prioritised replay
        trim_every: int = 0,  # updates after which a table is cut down to its soft capacity; 0: it sees to that itself
        synchronous: bool = False,  # what was acted with older weights than the newest is thrown away and counted
    ) -> None:
        self._learning, self._replay, self._table = learning, replay, table
        self._beta, self._trim_every, self._synchronous = beta, trim_every, synchronous
        self._calls = Background()  # to the replay
        self._watching: Future | None = None
        self._stale_items = 0  # thrown away
        self._told_lost: int | None = None  # items lost, by the front of several services, when it told the last time
        self._lost_items = 0  # by that front, in all its lives
        self._here: tuple[Sample, Batch] | None = None
        runtime, rank, learners = current().runtime, learning.rank, learning.learners
        share = batch * (rank + 1) // learners - batch * rank // learners
        timeout = PATIENCE if runtime.nodes_may_die or learners > 1 else None
        self._prefetch = Prefetch(
            lambda: futures(replay).sample(table, share, timeout=timeout),
            observation_space,
            learning.device,
            ahead=prefetch if runtime.asks_ahead else None,
            idle=learning.idle,
        )

    def wait(self) -> None:
        while self._here is None:
            self._prefetch.ask()
            sample, batch = self._prefetch.take()
            if self._synchronous and sample.versions.min() < self._learning.published:
                self._stale_items += len(sample)
            else:
                self._here = sample, batch

    def take(self) -> Taken:
        self.wait()
        assert self._here is not None
        (sample, batch), self._here = self._here, None
        if self._beta is not None:
            importance = sample.importance_weights(self._beta, self._learning.largest)
            batch["importance"] = torch.from_numpy(importance).to(self._learning.device)
        return Taken(batch, transitions(sample.data), sample)

    def learned(self, taken: Taken, update: Update) -> None:
        if update.priorities is not None and self._beta is not None:
            priorities = update.priorities.cpu().numpy()
            self._calls.add(futures(self._replay).update_priorities(self._table, taken.items.keys, priorities))
        learning = self._learning
        if self._trim_every and learning.rank == 0 and learning.updates % self._trim_every == 0:
            self._calls.add(futures(self._replay).trim(self._table))

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        """Staleness and spread of a batch, and what the table was like when the last report asked: nothing waits."""
        sample: Sample = taken.items
        values: dict[str, SupportsFloat] = {"staleness": self._staleness(sample.data)} | self._look()
        if self._beta is not None:
            values |= _spread("priority", sample.priorities) | _spread("importance", taken.batch["importance"])
        return values

    def counts(self) -> Mapping[str, float]:
        lost = self._prefetch.lost_items if self._told_lost is None else self._lost_items
        found = {"stale_items": self._stale_items, "lost_items": lost if self._learning.rank == 0 else 0}
        return {name: count for name, count in found.items() if count}

    def state_dict(self, scope: Scope = "own") -> State:
        if scope == "own":
            return {}
        state = {"lost_items": self._prefetch.lost_items, "stale_items": self._stale_items}
        return state | {"watching": self._watching is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            self._prefetch.lost_items, self._stale_items = state["lost_items"], state["stale_items"]
            self._watching = futures(self._replay).info() if state["watching"] else None

    def _staleness(self, data: Columns) -> float:
        """By how many updates the weights that acted lie behind, on average over rows that exist. Those of a learner's
        former life, which may have come further, count as the ones with which this life began."""
        learning, acted = self._learning, data["version"]
        acted = acted[data["mask"]] if "mask" in data else acted
        of_this_life = generation(acted) == learning.generation
        numbers = np.where(of_this_life, number(acted), np.minimum(number(acted), learning.begun))
        return float(np.mean(np.maximum(learning.updates - 1 - numbers, 0)))

    def _look(self) -> dict[str, SupportsFloat]:
        """What the table was like when it was asked the last time; asks again."""
        values: dict[str, SupportsFloat] = {}
        if self._watching is not None and self._watching.done():
            watching, self._watching = self._watching, None
            try:
                table = watching.result()[self._table]
            except NodeDied:  # on its way back: the next sample waits for it
                return values
            self._count_lost_items(table.get("lost_items"))
            values["replay_size"] = self._prefetch.there = table["size"]
            values["replay_age_seconds"] = table.get("age_seconds_mean", 0.0)
            if table["inserts_per_second"]:
                values["samples_per_insert"] = table["samples_per_second"] / table["inserts_per_second"]
        if self._watching is None:
            self._watching = futures(self._replay).info()
        return values

    def _count_lost_items(self, of_shards: int | None) -> None:
        """The front of several services, which holds no items, says what was lost with them; it may begin anew."""
        if of_shards is not None:
            before, self._told_lost = self._told_lost or 0, of_shards
            self._lost_items += of_shards - before if of_shards >= before else of_shards


def transitions(data: Columns) -> int:
    """How many a batch trains: rows of slices but the last, which only bootstraps, or one per item."""
    valid = data.get("valid")
    return int(valid[:-1].sum()) if valid is not None and valid.ndim > 1 else len(data["version"])


def _spread(name: str, values: Array | torch.Tensor) -> dict[str, SupportsFloat]:
    return {f"{name}_min": values.min(), f"{name}_mean": values.mean(), f"{name}_max": values.max()}
