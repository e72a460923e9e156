"""Central inference (SEED RL, Espeholt 2020): actors send observations and get actions; networks live here.

Requests of many actors are answered in one batch. What an actor would otherwise keep beside its network lives here too,
one slot per actor: recurrent state, the unfinished block of rows, the writer. A restarted actor begins a new stream in
a new slot, and what its old life still asks is refused. The policy may change inside an unroll, so version and
log-probability are stored with every row.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal import tree
from shoal.acting import Policy, Recorder, Sender, act_together
from shoal.program import Future, Members, NodeDied, current, futures
from shoal.replay import Pattern, Replay
from shoal.retry import retry
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.sync import Condition, monotonic
from shoal.types import Array, Columns, Role
from shoal.versions import NONE, updates_between

IDLE = 0.5  # seconds after which a server without requests looks for new weights and the end of the run


class Slot:
    """Where one actor's requests and answers meet, and what is remembered for its environments."""

    def __init__(self, run: int, recorder: Recorder, send: Sender) -> None:
        self.run, self.recorder, self.send = run, recorder, send
        self.answered = Condition()
        self.observation: Any = None
        self.arrived = 0.0
        self.action: Array | None = None
        self.error: BaseException | None = None


class Replaced(RuntimeError):
    """A request of an actor that was taken for lost and started again."""


class InferenceServer:
    """`act` is called by actors and waits for its answer; one `step` gathers requests and answers them together."""

    role = Role.INFERENCE
    restart = True  # with its slots the open blocks are lost: its actors begin new lives, and streams

    def __init__(
        self,
        make_policy: Callable[[int], Policy],
        patterns: Mapping[str, Pattern],
        rows: int,
        replays: Sequence[Replay],
        weights: WeightStore,
        metrics: Metrics,
        *,
        max_batch: int | Callable[[Members], int],  # environments answered at once
        max_wait: float,  # seconds that the first request of a batch waits for others
        actors: str = "actors",  # the group of those who ask
        stacks: Mapping[str, int] | None = None,  # columns of which the policy sees stacks, and of how many frames
    ) -> None:
        self._policy = make_policy(current().seed)
        self._patterns, self._rows, self._replays = dict(patterns), rows, replays
        self._weights = weights
        self._report = Reporter(metrics)
        self._most, self._max_wait, self._actors = max_batch, max_wait, actors
        self._stacks = dict(stacks or {})
        self._slots: dict[str, Slot] = {}
        self._requested = Condition()
        self.regroup(current().members)
        self._pending: list[Slot] = []
        self._environments = 0  # in the pending requests
        self._closed = False
        self._queueing: collections.deque[float] = collections.deque(maxlen=1000)
        self._inferring: collections.deque[float] = collections.deque(maxlen=1000)
        self._batches: list[int] = []  # environments in each since the last report
        self._fetching: Future | None = None
        self._version = NONE
        found = retry(lambda: weights.wait(NONE))
        if found is not None:
            self._version, arrays = found
            self._policy.load(arrays)

    def regroup(self, members: Members) -> None:
        """There are more actors, or fewer: batches that are waited for, and places, follow."""
        with self._requested:
            self._max_batch = self._most(members) if callable(self._most) else self._most
            self._total = members.totals.get(self._actors, 1)
            self._requested.notify_all()

    def forget(self, name: str) -> None:
        """An actor has left; its rows are sent, but for those of open episodes."""
        with self._requested:
            slot = self._slots.pop(name, None)
        for kind, lost in slot.send.take_lost().items() if slot is not None else ():
            self._report.count(kind, lost)

    def act(self, actor: str, run: int, observation: Any, outcome: Step | None, first_environment: int = 0) -> Array:
        """Actions for an actor's observations. `outcome` is what its last actions gave, without the observation;
        `first_environment` is where its environments begin among those of all actors.

        `run` counts the actor's lives; a new one starts its slot afresh, and late requests of older ones are refused.
        """
        with self._requested:
            slot = self._slots.get(actor)
            if slot is not None and run < slot.run:
                raise Replaced(f"life {run} of {actor!r} has ended: its life {slot.run} acts in its place")
            if begins := slot is None or slot.run < run:
                slot = self._slots[actor] = self._open(
                    actor, run, first_environment, len(next(iter(tree.flatten(observation).values())))
                )
        assert slot is not None
        count = slot.recorder.count
        slot.recorder.player.place(first_environment, max(self._total * count, first_environment + count))
        if outcome is not None and not begins:
            slot.recorder.result(outcome)
        slot.action = slot.error = None
        slot.observation, slot.arrived = observation, monotonic()
        with self._requested:
            self._pending.append(slot)
            self._environments += slot.recorder.count
            self._requested.notify_all()
        with slot.answered:
            slot.answered.wait_for(
                lambda: slot.action is not None or slot.error is not None or self._closed, None, "the inference server"
            )
        if slot.action is None:
            raise slot.error or RuntimeError("the inference server has closed")
        return slot.action

    def step(self) -> None:
        batch = self._gather()
        self._report.lap("waiting for requests")
        self._refresh()
        if batch:
            try:
                self._answer(batch)
            except Exception as error:
                for slot in batch:
                    self._reply(slot, None, error)
                raise
        self._report.lap("inference")
        if self._report.due():
            self._measure()
            self._report.flush()

    def close(self) -> None:
        self._closed = True
        waiting = {*self._slots.copy().values(), *self._pending}  # old lives may wait too
        for condition in [self._requested, *(slot.answered for slot in waiting)]:
            with condition:
                condition.notify_all()

    # ---- one batch

    def _gather(self) -> list[Slot]:
        """The requests to answer next: as many as allowed, or those that came in time."""
        with self._requested:
            if not self._requested.wait_for(lambda: bool(self._pending) or self._closed, IDLE, "requests of actors"):
                return []
            left = self._max_wait - (monotonic() - self._pending[0].arrived) if self._pending else 0.0
            if self._environments < self._max_batch and left > 0:
                self._requested.wait_for(
                    lambda: self._environments >= self._max_batch or self._closed, left, "a full batch"
                )
            batch: list[Slot] = []
            taken = 0
            while self._pending and (not batch or taken + self._pending[0].recorder.count <= self._max_batch):
                slot = self._pending.pop(0)
                batch.append(slot)
                taken += slot.recorder.count
            self._environments -= taken
            return batch

    def _answer(self, batch: list[Slot]) -> None:
        begun = monotonic()
        actions = act_together(
            self._policy, [slot.recorder.player for slot in batch], [slot.observation for slot in batch]
        )
        for slot, action in zip(batch, actions):
            slot.recorder.version = self._version
            slot.recorder.record(slot.observation, action)
            self._queueing.append(begun - slot.arrived)
            self._reply(slot, action, None)
        answered = sum(slot.recorder.count for slot in batch)
        self._inferring.append(monotonic() - begun)
        self._report.count("inference_batches")
        self._report.count("inference_environments", answered)
        self._batches.append(answered)

    @staticmethod
    def _reply(slot: Slot, action: Array | None, error: BaseException | None) -> None:
        with slot.answered:
            slot.action, slot.error = action, error
            slot.answered.notify_all()

    # ---- slots, weights, measurements

    def _open(
        self, actor: str, run: int, first_environment: int, count: int, ship: Callable[[Columns], object] | None = None
    ) -> Slot:
        """With `ship`, that is given full blocks in the place of the slot's sender."""
        send = Sender(self._policy, self._replays, self._patterns, actor, home=first_environment // count)
        recorder = Recorder(self._policy, count, self._rows, ship or send, stacks=self._stacks)
        return Slot(run, recorder, send)

    def _refresh(self) -> None:
        if self._fetching is None:
            self._fetching = futures(self._weights).newer(self._version)
        if self._fetching is not None and self._fetching.done():
            fetching, self._fetching = self._fetching, None
            try:
                found = fetching.result()
            except NodeDied:  # on its way back: it goes on with what it has
                found = None
            if found is not None:
                self._report.values["acting_staleness"] = updates_between(self._version, found[0])
                self._version, arrays = found
                self._policy.load(arrays)

    def _measure(self) -> None:
        values = self._report.values
        for slot in self._slots.copy().values():
            for name, lost in slot.send.take_lost().items():
                self._report.count(name, lost)
        if self._batches:
            values["inference_batch"] = np.mean(self._batches)
            self._batches.clear()
        for name, seconds in (("queueing", self._queueing), ("inference", self._inferring)):
            if seconds:
                values[f"{name}_ms_p50"], values[f"{name}_ms_p99"] = np.percentile(list(seconds), (50, 99)) * 1e3
