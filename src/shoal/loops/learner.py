"""The learner: takes batches that were asked for ahead of time, updates, publishes, returns priorities."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from shoal.loops.recorder import Columns
from shoal.program import Future, current, futures
from shoal.replay import Replay
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import Weights, WeightStore, make_version, number

MAX_REFUSED = 10  # updates refused in a row before the run gives up


class NonFinite(RuntimeError):
    """Loss or gradient were not finite too many times in a row."""


class Learner(Protocol):
    """What learns. `update` returns its measurements; among them `applied`, False when the update was refused because
    loss or gradient were not finite, and `priorities` [items], which go back to a prioritised table."""

    def update(self, batch: Columns) -> dict[str, Any]: ...
    def weights(self) -> Weights: ...


class LearnerLoop:
    """One step is one update."""

    def __init__(
        self,
        make_learner: Callable[[int], Learner],
        table: str,
        batch: int,  # items per update
        replay: Replay,
        weights: WeightStore,
        metrics: Metrics,
        *,
        prefetch: int = 1,
        publish_every: int = 1,
        max_updates: int | None = None,
        beta: float | None = None,  # adds a column "importance" [items]: the weights of prioritised replay
    ) -> None:
        self._learner = make_learner(current().seed)
        self._table, self._batch = table, batch
        self._replay, self._weights = replay, weights
        self._publish_every, self._max_updates = publish_every, max_updates
        self._beta = beta
        self._updates = 0
        self._refused = 0
        self._generation = current().restarts
        self._report = Reporter(metrics)
        self._publish()
        self._asked: collections.deque[Future] = collections.deque()
        for _ in range(prefetch + 1):
            self._ask()
        self._report.lap("starting")

    def step(self) -> bool:
        report = self._report
        if self._max_updates is not None and self._updates >= self._max_updates:
            return False
        sample = self._asked.popleft().result()
        report.lap("waiting for data")
        batch = sample.data
        if self._beta is not None:
            batch = {**batch, "importance": sample.importance_weights(self._beta)}
        measured = self._learner.update(batch)
        self._updates += 1
        report.count("learner_steps")
        report.count("trained_steps", _transitions(batch))
        self._judge(bool(measured.pop("applied", True)))
        report.lap("learning")
        if (priorities := measured.pop("priorities", None)) is not None:
            futures(self._replay).update_priorities(self._table, sample.keys, priorities)
        if self._updates % self._publish_every == 0:
            self._publish()
        report.lap("publishing")
        if report.due():
            report.values.update(measured)
            report.values["staleness"] = self._updates - 1 - float(np.mean(number(batch["version"])))
            report.values["version"] = self._updates
            report.flush()
        del sample, batch  # their memory can be used again
        self._ask()
        return True

    def _ask(self) -> None:
        self._asked.append(futures(self._replay).sample(self._table, self._batch))

    def _publish(self) -> None:
        self._weights.publish(self._learner.weights(), make_version(self._generation, self._updates))

    def _judge(self, applied: bool) -> None:
        if applied:
            self._refused = 0
            return
        self._refused += 1
        self._report.count("refused_updates")
        if self._refused >= MAX_REFUSED:
            raise NonFinite(
                f"loss or gradient were not finite in {MAX_REFUSED} updates in a row: lower the learning rate, "
                "clip the rewards, or look for NaN in the environment's observations"
            )


def _transitions(batch: Columns) -> int:
    """How many a batch holds: rows of slices but the last, which only bootstraps, or one per item."""
    valid = batch.get("valid")
    return int(valid[:-1].sum()) if valid is not None and valid.ndim > 1 else len(batch["version"])
