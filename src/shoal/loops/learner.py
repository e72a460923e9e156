"""The learner: takes batches that were asked for ahead of time, updates, publishes, returns priorities."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from shoal.batches import Batch
from shoal.errors import Fault
from shoal.learning import Learner
from shoal.loops.keeper import Keeper
from shoal.loops.loop import EXACT, Loop
from shoal.loops.prefetch import Prefetch
from shoal.nets.targets import copy_to_targets
from shoal.nets.transfer import freeze, transfer
from shoal.nets.weights import export_weights, import_weights
from shoal.program import Background, Future, NodeDied, current, futures
from shoal.replay import Replay, Sample
from shoal.retry import retry
from shoal.services.group import Group, Member
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.state import as_arrays, as_tensors, has_state
from shoal.sync import sleep
from shoal.types import Columns, Role
from shoal.versions import NONE, make_version, number

MAX_REFUSED = 10  # updates refused in a row before the run gives up
PATIENCE = 1.0  # seconds after which a learner asks for its data anew, and looks around meanwhile


class NonFinite(Fault):
    """Loss or gradient were not finite too many times in a row."""


class LearnerLoop(Loop):
    """One step is one update.

    With a `group`, this is learner `rank` of `learners` that update together: `make_learner` is also given the `Member`
    through which they add up. Rank 0 publishes and counts. When one of them is lost all start again, from the newest
    snapshot, in a new generation.
    """

    role = Role.LEARNER
    restart = True  # it goes on from its newest snapshot, which the weight service keeps

    def __init__(
        self,
        make_learner: Callable[..., Learner],  # of a seed, and of a Member where there is a group
        table: str,
        batch: int,  # items per update
        replay: Replay,
        weights: WeightStore,
        metrics: Metrics,
        *,
        observation_space: Any,
        device: str = "cpu",
        prefetch: int = 1,
        publish_every: int = 1,
        max_updates: int | None = None,
        beta: float | None = None,  # adds a column "importance" [items]: the weights of prioritised replay
        trim_every: int = 0,  # updates after which a table is cut down to its soft capacity; 0: it sees to that itself
        synchronous: bool = False,  # what was acted with older weights than the newest is thrown away and counted
        frozen: str | None = None,  # patterns of parameters that stay as they are
        group: Group | None = None,
        rank: int = 0,
        learners: int = 1,
    ) -> None:
        super().__init__()
        self._table = table
        self._replay, self._weights = replay, weights
        self._publish_every, self._max_updates = publish_every, max_updates
        self._beta, self._synchronous, self._trim_every = beta, synchronous, trim_every
        self._device = torch.device(device)
        self._leads = rank == 0
        self._updates = 0
        self._published = NONE
        self.progress = 0  # updates applied in this life; the supervisor asks for it
        self._refused = 0
        self._reporter = Reporter(metrics)
        self._keeper = Keeper(weights)
        self._watching: Future | None = None
        self._lost_items: int | None = None  # as the front of several services said last
        self._calls = Background()  # to the replay
        self._largest: Callable[[float], float] = float
        runtime = current().runtime
        timeout = PATIENCE if runtime.nodes_may_die else None
        if group is None:
            self._learner, self._generation = make_learner(current().seed), current().restarts
        else:
            member = Member(group, rank, learners)
            self._learner, self._generation = make_learner(current().seed, member), member.generation
            self._largest, timeout = member.largest, PATIENCE
        if frozen is not None:
            freeze(self._learner.network, frozen)
        if self._leads and not has_state(self._learner):
            self._reporter.note(
                f"{type(self._learner).__name__} has no state_dict and load_state_dict: checkpoints hold its weights "
                "only, and after an interruption its optimizer begins anew"
            )
        self._start_from_snapshot(alone=group is None)
        self._prefetch = Prefetch(
            lambda: futures(replay).sample(table, batch, timeout=timeout),
            observation_space,
            self._device,
            ahead=prefetch if runtime.asks_ahead else None,
            idle=self._look_around,
        )
        self._reporter.lap("starting")

    def step(self) -> bool:
        if self._finishing or (self._max_updates is not None and self._updates >= self._max_updates):
            return self._end()
        with self._still():
            sample, batch = self._take()
        self._reporter.lap("waiting for data")
        if self._finishing:
            return self._end()
        with self._at_work:
            self._update(sample, batch)
        del sample, batch  # their memory can be used again
        self._prefetch.ask()
        return True

    def finish(self) -> None:
        """Of several, rank 0 ends after an update that all have made; the others wait for it in the next one."""
        if self._leads:
            super().finish()

    def report(self) -> None:
        """Publish what the last update has made of the weights, also between two publications."""
        with self._at_work:
            if number(self._published) != self._updates:
                self._publish()
        super().report()

    def _update(self, sample: Sample, batch: Batch) -> None:
        report = self._reporter
        if self._beta is not None:
            importance = sample.importance_weights(self._beta, self._largest)
            batch["importance"] = torch.from_numpy(importance).to(self._device)
        update = self._learner.update(batch)
        self._updates += 1
        if self._leads:
            report.count("learner_steps")
        report.count("trained_steps", _transitions(sample.data))
        self._check_applied(update.applied)
        if update.note is not None and self._leads:
            report.note(update.note)
        report.lap("learning")
        if update.priorities is not None and self._beta is not None:
            priorities = update.priorities.cpu().numpy()
            self._calls.add(futures(self._replay).update_priorities(self._table, sample.keys, priorities))
        if self._trim_every and self._leads and self._updates % self._trim_every == 0:
            self._calls.add(futures(self._replay).trim(self._table))
        if self._updates % self._publish_every == 0:
            self._publish()
        if self._leads and self._keeper.due():
            self._keep_snapshot()
        report.lap("publishing")
        if report.due():
            self._look_around()
            if self._leads:
                report.values.update(update.metrics)
                report.values.update(self._measure(sample))
                if self._beta is not None:
                    report.values.update(_spread("priority", sample.priorities), **_spread("importance", importance))
            report.flush()

    def checkpoint(self) -> dict[str, Any]:
        """The state between two updates, as arrays."""
        with self._at_work:
            state: dict[str, Any] = as_arrays(self.state_dict())
            return state

    @property
    def updates(self) -> int:
        return self._updates

    def exact_state(self) -> dict[str, Any]:
        """The state for a run of which all nodes go on together."""
        exact = {"published": self._published, "reporter": self._reporter.state_dict()}
        exact |= {"watching": self._watching is not None, "lost_items": self._prefetch.lost_items}
        return self.state_dict() | {EXACT: exact}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"updates": self._updates, "refused": self._refused}
        if has_state(self._learner):
            return state | {"learner": self._learner.state_dict()}
        return state | {"weights": export_weights(self._learner.network)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "learner" in state:
            self._learner.load_state_dict(state["learner"])
        else:
            transfer(self._learner.network, state["weights"], partial=state.get("partial", False))
            copy_to_targets(self._learner)
        self._updates, self._refused = state["updates"], state["refused"]
        if EXACT in state:
            exact = state[EXACT]
            self._published, self._prefetch.lost_items = exact["published"], exact["lost_items"]
            self._reporter.load_state_dict(exact["reporter"])
            self._watching = futures(self._replay).info() if exact["watching"] else None

    # ---- data and weights

    def _take(self) -> tuple[Sample, Batch]:
        while True:
            sample, batch = self._prefetch.take()
            if not self._synchronous or sample.versions.min() >= self._published:
                return sample, batch
            self._reporter.count("stale_items", len(sample))
            self._prefetch.ask()

    def _publish(self) -> None:
        self._published = make_version(self._generation, self._updates)
        if self._leads:
            with contextlib.suppress(NodeDied):  # the service is on its way back, and gets the next version
                self._weights.publish(export_weights(self._learner.network), self._published)

    def _start_from_snapshot(self, alone: bool) -> None:
        """Begin where the last life's newest snapshot was, or as made; all learners of a group begin as rank 0 does."""
        if not self._leads:
            retry(lambda: self._weights.wait(make_version(self._generation, 0) - 1))
        kept = retry(self._weights.kept_snapshot)
        found = retry(lambda: self._weights.newer(NONE)) if current().restarts else None
        reached = 0 if found is None else number(found[0])
        found = found if kept is None else None
        if found is not None:  # the service was lost too: what it shared is left
            self._updates = number(found[0])
            import_weights(self._learner.network, found[1])
        if kept is not None:
            self.load_state_dict(as_tensors(kept))
            if self._leads and not alone:
                sleep(2 * PATIENCE)  # what lost learners asked for must not be answered with data for the new ones
        if self._leads:
            self._reporter.count("lost_updates", max(0, reached - self._updates))
            self._keep_snapshot()
        self._publish()

    def _keep_snapshot(self) -> None:
        self._keeper.keep(lambda: as_arrays(self.state_dict()))

    def _look_around(self) -> None:
        """Bring a weight service that was lost what it needs: others may wait for it, and this learner for them."""
        if self._leads and self._keeper.lacks(self._published):
            self._publish()
            self._keep_snapshot()

    # ---- measurements

    def _measure(self, sample: Sample) -> dict[str, float]:
        """Staleness of a batch, and what the table was like when the last report asked: nothing waits for it."""
        acted: Any = sample.data["version"]
        acted = acted[sample.data["mask"]] if "mask" in sample.data else acted  # rows that exist
        values = {"staleness": self._updates - 1 - float(np.mean(number(acted))), "version": float(self._updates)}
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
        """Items that were lost with a replay; the front of several, which holds none, says what was lost with them."""
        if of_shards is None:
            self._reporter.set_count("lost_items", self._prefetch.lost_items)
            return
        before, self._lost_items = self._lost_items or 0, of_shards
        self._reporter.count("lost_items", of_shards - before if of_shards >= before else of_shards)

    def _check_applied(self, applied: bool) -> None:
        """Give up when too many updates in a row were refused."""
        if applied:
            self.progress += 1
            self._refused = 0
            return
        self._refused += 1
        if self._leads:
            self._reporter.count("refused_updates")
        if self._refused >= MAX_REFUSED:
            raise NonFinite(
                f"loss or gradient were not finite in {MAX_REFUSED} updates in a row: lower the learning rate, "
                "clip the rewards, or look for NaN in the environment's observations"
            )


def _transitions(data: Columns) -> int:
    """How many a batch holds: rows of slices but the last, which only bootstraps, or one per item."""
    valid = data.get("valid")
    return int(valid[:-1].sum()) if valid is not None and valid.ndim > 1 else len(data["version"])


def _spread(name: str, values: Any) -> dict[str, float]:
    return {f"{name}_min": values.min(), f"{name}_mean": values.mean(), f"{name}_max": values.max()}
