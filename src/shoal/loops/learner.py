"""The learner: takes batches from its source, updates, publishes, tells the source what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from shoal.errors import Fault
from shoal.learning import Learner, Learning, MakeSource, Taken
from shoal.loops.keeper import Keeper, Publication
from shoal.loops.loop import EXACT, Loop
from shoal.loops.sources import PATIENCE
from shoal.loops.threads import IdleCores
from shoal.nets.targets import copy_to_targets
from shoal.nets.transfer import freeze, transfer
from shoal.nets.weights import export_weights, import_weights
from shoal.products import choose_library
from shoal.program import current
from shoal.retry import retry
from shoal.services.group import Member
from shoal.services.metrics import LEARNER_STEPS, Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.state import Scope, State, as_arrays, as_tensors, has_state
from shoal.sync import sleep
from shoal.types import Role
from shoal.versions import NONE, make_version, number

MAX_REFUSED = 10  # updates refused in a row before the run gives up
LEARNER = "learner"  # under which the first of a group keeps its snapshots, for all of them


class NonFinite(Fault):
    """Loss or gradient were not finite too many times in a row."""


class LearnerLoop(Loop):
    """One step is one update.

    With `join` it is one of several learners that update together: `make_learner` is also given the `Member` through
    which they add up. Rank 0 publishes and counts. When one of them is lost all start again, from the newest snapshot,
    in a new generation.
    """

    role = Role.LEARNER
    restart = True  # it goes on from its newest snapshot, which the weight service keeps
    in_checkpoints = True

    def __init__(
        self,
        make_learner: Callable[..., Learner],  # of a seed, and of a Member where there are several
        make_source: MakeSource,
        weights: WeightStore,
        metrics: Metrics,
        *,
        join: Callable[[], Member] | None = None,
        device: str = "cpu",
        publish_every: int = 1,
        max_updates: int | None = None,
        frozen: str | None = None,  # patterns of parameters that stay as they are
        follow_cores: bool = False,  # compute with more threads while other cores are idle
    ) -> None:
        super().__init__()
        self._weights, self._publish_every, self._max_updates = weights, publish_every, max_updates
        self._reporter = Reporter(metrics)
        self._learning = learning = _learning(make_learner, torch.device(device), join)
        if frozen is not None:
            freeze(learning.learner.network, frozen)
        learning.idle = self._look_around
        self._leads, self._alone = learning.rank == 0, join is None
        self._publication = Publication(weights, learning)
        self._keeper = Keeper(weights)
        self._source = make_source(learning)
        self._limited = retry(metrics.step_limit) is not None
        self._begun = False
        self.progress = 0  # updates applied in this life; the supervisor asks for it
        self._refused = 0  # in a row
        # where nothing has to be exact: sums are rounded otherwise by another number of threads
        follow_cores = follow_cores and learning.device.type == "cpu" and current().runtime.own_processes
        self._idle_cores = IdleCores() if follow_cores else None
        if self._leads and not has_state(learning.learner):
            self._reporter.note(
                f"{type(learning.learner).__name__} has no state_dict and load_state_dict: checkpoints hold its "
                "weights only, and after an interruption its optimizer begins anew"
            )

    def step(self) -> bool:
        if not self._begun:
            self._begin()
        if self._finishing or (self._max_updates is not None and self.updates >= self._max_updates):
            return self._end()
        with self._still():
            self._source.wait()
        self._reporter.lap("waiting for data")
        if self._finishing:
            return self._end()
        with self._at_work:
            taken = self._source.take()
            if self._source.activity != "learning":
                self._reporter.lap(self._source.activity)
            self._update(taken)
            more = self._may_go_on()
        return True if more else self._end()

    def _may_go_on(self) -> bool:
        """False when all steps of environments were made that the run was given, by sources that make them."""
        if not (self._limited and self._leads and "env_steps" in self._source.counts()):
            return True
        self._take_counts()
        return self._reporter.spend_steps()

    def finish(self) -> None:
        """Of several, rank 0 ends after an update that all have made; the others wait for it in the next one."""
        if self._leads:
            super().finish()

    def report(self) -> None:
        """Publish what the last update has made of the weights, also between two publications."""
        with self._at_work:
            if self._begun and number(self._learning.published) != self.updates:
                self._publication.publish()
            self._take_counts()
        super().report()

    @property
    def updates(self) -> int:
        return self._learning.updates

    def _update(self, taken: Taken) -> None:
        report, learning = self._reporter, self._learning
        begin = time.perf_counter()
        update = learning.learner.update(taken.batch)
        if self._idle_cores is not None:
            self._idle_cores.took(time.perf_counter() - begin - update.waited)
        learning.updates += 1
        report.count("trained_steps", taken.transitions)
        self._check_applied(update.applied)
        if update.note is not None and self._leads:
            report.note(update.note)
        report.lap("learning")
        self._source.learned(taken, update)
        if learning.updates % self._publish_every == 0:
            self._publication.publish()
        if self._leads and self._keeper.due():
            self._keeper.keep(self._states)
        report.lap("publishing")
        if report.due():
            self._look_around()
            for note in self._source.notes():
                report.note(note)
            if self._leads:
                report.values.update(update.metrics)
                report.values.update(self._source.measure(taken), version=learning.updates)
            self._take_counts()
            report.flush()

    def _take_counts(self) -> None:
        if self._leads and self._begun:
            self._reporter.set_lasting(LEARNER_STEPS, self.updates)
        for name, count in self._source.counts().items():
            self._reporter.set_count(name, count)

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

    # ---- state

    def state_dict(self, scope: Scope = "own") -> State:
        """The state between two updates, as arrays."""
        with self._at_work:
            learner, source = self._learning.learner, self._source.state_dict("own")
            state: State = {"updates": self.updates, "refused": self._refused}
            state |= {"source": as_arrays(source)} if source else {}
            if has_state(learner):
                state["learner"] = as_arrays(learner.state_dict())
            else:
                state["weights"] = export_weights(learner.network)
            if scope == "exact":
                exact: State = {"published": self._learning.published, "begun": self._learning.begun}
                exact |= {"reporter": self._reporter.state_dict(), "source": as_arrays(self._source.state_dict(scope))}
                state[EXACT] = exact
            return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, or from another run's "weights" alone; to be called before the first step."""
        learning = self._learning
        if "learner" in state:
            learning.learner.load_state_dict(as_tensors(state["learner"]))
        else:
            transfer(learning.learner.network, state["weights"], partial=state.get("partial", False))
            copy_to_targets(learning.learner)
        learning.updates, self._refused = state["updates"], state["refused"]
        if (exact := state.get(EXACT)) is not None:
            learning.published, learning.begun, self._begun = exact["published"], exact["begun"], True
            self._reporter.load_state_dict(exact["reporter"])
        if source := state.get(EXACT, state).get("source"):
            self._source.load_state_dict(as_tensors(source))

    def _begin(self) -> None:
        """Begin where the last life's newest snapshot was, else with the state that was given, else as made; all
        learners of a group begin as rank 0 does."""
        learning, weights = self._learning, self._weights
        if not self._leads:
            retry(lambda: weights.wait(make_version(learning.generation, 0) - 1))
        kept = retry(lambda: weights.kept_snapshot(LEARNER))
        found = retry(lambda: weights.newer(NONE)) if current().restarts else None
        if kept is not None:
            self.load_state_dict(kept)
            if self._leads and not self._alone:
                sleep(2 * PATIENCE)  # what lost learners asked for must not be answered with data for the new ones
        elif found is not None:  # the service was lost too: what it shared is left
            learning.updates = number(found[0])
            import_weights(learning.learner.network, found[1])
        if self._leads:
            reached = 0 if found is None else number(found[0])
            self._reporter.count("lost_updates", max(0, reached - self.updates))
            self._keeper.keep(self._states, wait=True)  # before others hear of a version
        self._begun, learning.begun = True, self.updates
        self._publication.publish()
        self._reporter.lap("starting")

    def _states(self) -> dict[str, State]:
        return {LEARNER: self.state_dict()}

    def _look_around(self) -> None:
        """Bring a weight service that was lost what it needs: others may wait for it, and this learner for them."""
        if self._leads and self._keeper.lacks(self._learning.published):
            self._publication.publish()
            self._keeper.keep(self._states)


def _learning(
    make_learner: Callable[..., Learner], device: torch.device, join: Callable[[], Member] | None
) -> Learning:
    if device.type == "cpu":
        choose_library()
    node = current()
    if join is None:
        return Learning(make_learner(node.seed), device, seed=node.seed, generation=node.restarts)
    member = join()
    return Learning(
        make_learner(node.seed, member),
        device,
        seed=node.seed,
        rank=member.rank,
        learners=member.size,
        largest=member.largest,
        generation=member.generation,
    )
