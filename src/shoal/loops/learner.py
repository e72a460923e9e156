"""The learner: takes batches that were asked for ahead of time, updates, publishes, returns priorities."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from shoal.loops.recorder import Columns
from shoal.program import Future, current, futures
from shoal.replay import Replay, ReplayTimeout, Sample
from shoal.services.group import Group, Member
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import NONE, Weights, WeightStore, make_version, number
from shoal.sync import sleep

MAX_REFUSED = 10  # updates refused in a row before the run gives up
PATIENCE = 1.0  # seconds after which one of several learners asks for its data anew


class NonFinite(RuntimeError):
    """Loss or gradient were not finite too many times in a row."""


class Learner(Protocol):
    """What learns. `update` returns its measurements; among them `applied`, False when the update was refused because
    loss or gradient were not finite, `priorities` [items], which go back to a prioritised table, and a `note`, a
    sentence for the user."""

    def update(self, batch: Columns) -> dict[str, Any]: ...
    def weights(self) -> Weights: ...


class GroupLearner(Learner, Protocol):
    """One that can be one of several, which start from the same weights."""

    def load(self, weights: Weights) -> None: ...


class LearnerLoop:
    """One step is one update.

    With a `group`, this is learner `rank` of `learners` that update together: `make_learner` is also given the `Member`
    through which they add up. Rank 0 publishes and counts. When one of them is lost all start again, from the newest
    weights, in a new generation.
    """

    def __init__(
        self,
        make_learner: Callable[..., Learner],  # of a seed, and of a Member where there is a group
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
        trim_every: int = 0,  # updates after which a table is cut down to its soft capacity; 0: it sees to that itself
        synchronous: bool = False,  # what was acted with older weights than the newest is thrown away and counted
        group: Group | None = None,
        rank: int = 0,
        learners: int = 1,
    ) -> None:
        self._table, self._batch = table, batch
        self._replay, self._weights = replay, weights
        self._publish_every, self._max_updates = publish_every, max_updates
        self._beta, self._synchronous, self._trim_every = beta, synchronous, trim_every
        self._leads = rank == 0
        self._updates = 0
        self._refused = 0
        self._report = Reporter(metrics)
        self._watching: Future | None = None
        self._largest: Callable[[float], float] = float
        if group is None:
            self._learner, self._generation, self._timeout = make_learner(current().seed), current().restarts, None
            self._publish()
        else:
            member = Member(group, rank, learners)
            learner = make_learner(current().seed, member)
            self._learner, self._generation, self._timeout = learner, member.generation, PATIENCE
            self._largest = member.largest
            self._start_equal(cast(GroupLearner, learner))
        self._asked: collections.deque[Future] = collections.deque()
        for _ in range(prefetch + 1):
            self._ask()
        self._report.lap("starting")

    def step(self) -> bool:
        report = self._report
        if self._max_updates is not None and self._updates >= self._max_updates:
            report.flush().result()  # who sees that this node has finished finds everything reported
            return False
        sample = self._take()
        report.lap("waiting for data")
        batch = sample.data
        if self._beta is not None:
            batch = {**batch, "importance": sample.importance_weights(self._beta, self._largest)}
        measured = self._learner.update(batch)
        self._updates += 1
        if self._leads:
            report.count("learner_steps")
        report.count("trained_steps", _transitions(batch))
        self._judge(bool(measured.pop("applied", True)))
        if (note := measured.pop("note", None)) is not None and self._leads:
            report.note(note)
        report.lap("learning")
        if (priorities := measured.pop("priorities", None)) is not None:
            futures(self._replay).update_priorities(self._table, sample.keys, priorities)
        if self._trim_every and self._leads and self._updates % self._trim_every == 0:
            futures(self._replay).trim(self._table)
        if self._updates % self._publish_every == 0:
            self._publish()
        report.lap("publishing")
        if report.due():
            if self._leads:
                report.values.update(measured)
                acted: Any = batch["version"]
                acted = acted[batch["mask"]] if "mask" in batch else acted  # rows that exist
                report.values["staleness"] = self._updates - 1 - float(np.mean(number(acted)))
                report.values["version"] = self._updates
                if self._beta is not None:
                    report.values.update(
                        _spread("priority", sample.priorities), **_spread("importance", batch["importance"])
                    )
                self._watch()
            report.flush()
        del sample, batch  # their memory can be used again
        self._ask()
        return True

    def _ask(self) -> None:
        self._asked.append(futures(self._replay).sample(self._table, self._batch, timeout=self._timeout))

    def _take(self) -> Sample:
        while True:
            try:
                sample: Sample = self._asked.popleft().result()
            except ReplayTimeout:
                self._ask()
                continue
            if not self._synchronous or sample.data["version"][-1].min() >= self._published:
                return sample
            self._report.count("stale_items", len(sample))
            self._ask()

    def _publish(self) -> None:
        self._published = make_version(self._generation, self._updates)
        if self._leads:
            self._weights.publish(self._learner.weights(), self._published)

    def _start_equal(self, learner: GroupLearner) -> None:
        """Begin with the weights of all others: the newest, or where there are none those that rank 0 was made with."""
        if not self._leads:
            found = self._weights.wait(make_version(self._generation, 0) - 1)
        elif (found := self._weights.newer(NONE)) is not None:
            sleep(2 * PATIENCE)  # what the lost learners asked for must not be answered with data for the new ones
        if found is not None:
            version, weights = found
            learner.load(weights)
            self._updates = number(version)
        self._publish()

    def _watch(self) -> None:
        """What the table was like when the last report asked: nothing waits for the answer."""
        if self._watching is not None and self._watching.done():
            table, values = self._watching.result()[self._table], self._report.values
            values["replay_size"] = table["size"]
            values["replay_age_seconds"] = table.get("age_seconds_mean", 0.0)
            if table["inserts_per_second"]:
                values["samples_per_insert"] = table["samples_per_second"] / table["inserts_per_second"]
            self._watching = None
        if self._watching is None:
            self._watching = futures(self._replay).info()

    def _judge(self, applied: bool) -> None:
        if applied:
            self._refused = 0
            return
        self._refused += 1
        if self._leads:
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


def _spread(name: str, values: Any) -> dict[str, float]:
    return {f"{name}_min": values.min(), f"{name}_mean": values.mean(), f"{name}_max": values.max()}
