"""Metrics: every node reports counts, values and where its time goes; the service adds them up."""

from __future__ import annotations

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.program import Background, Future, NodeDied, current, futures
from shoal.retry import retry
from shoal.state import Scope, State
from shoal.sync import Condition, monotonic
from shoal.types import MAIN, Role

KEPT = 1000  # evaluations, at least
LEARNED = ("learner_steps", "trained_steps", "refused_updates", "lost_updates")  # counts that are of a policy
LASTING = -1  # the life of what counts on when a run goes on: it tells what it has counted in all of them
UPDATES = "updates"  # under which that is kept: the updates behind weights, and what a gradient service counts
LEARNER_STEPS = "learner_steps"  # as weights have had them: fewer than before, where some were lost with a learner


class Metrics:
    """Counts are summed over nodes, values are the latest; notes are kept, and the newest evaluations.

    A node tells what it has counted in its present life, all of it, every time: a report that is lost or comes twice
    changes nothing, and a service that was lost itself hears everything again from those who live.
    """

    role = Role.METRICS
    in_checkpoints = True
    restart = True  # the driver has what it last said, and the nodes what they have counted

    def __init__(self, max_steps: int | None = None) -> None:  # that all environments together may make
        self._max_steps = max_steps
        self._lock = Condition()
        self._ended: dict[str, float] = defaultdict(float)  # counted in lives that have ended
        self._sums: dict[str, float] = defaultdict(float)  # counted in all lives
        self._lives: dict[str, tuple[int, dict[str, float]]] = {}  # the newest life of each node, and what it counted
        self._values: dict[str, float] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._heard: dict[str, float] = {}
        self._evaluations: list[dict[str, Any]] = []
        self._forgotten = 0  # evaluations before these
        self._notes: list[str] = []
        self._begun: float | None = None  # when the first environment step was made, or the first update
        self._first_update: float | None = None

    def report(
        self,
        node: str,
        counts: dict[str, float],
        values: dict[str, float],
        times: dict[str, float],
        life: int = 0,
        lasting: Mapping[str, float] | None = None,
    ) -> None:
        """`counts` is what the node has counted since the beginning of this life; `lasting` counts on through all lives
        and is nobody's own, such as the updates that weights have had."""
        with self._lock:
            now = monotonic()
            self._count(node, life, counts)
            if lasting:
                self._count(UPDATES, LASTING, lasting)
            if (counts.get("learner_steps") or (lasting or {}).get("learner_steps")) and self._first_update is None:
                self._first_update = now
            self._values.update(values)
            self._nodes[node] = {"times": times, "values": values}
            self._heard[node] = now

    def forget(self, name: str) -> None:
        """A node has left: what it has counted stays, where its time went is past."""
        with self._lock:
            self._nodes.pop(name, None)
            self._heard.pop(name, None)

    def step_limit(self) -> int | None:
        return self._max_steps

    def spend_steps(self, node: str, steps: float, life: int = 0) -> bool:
        """A node has made so many environment steps in this life; False when all together have made as many as the run
        was given, or more."""
        with self._lock:
            self._count(node, life, {"env_steps": steps})
            return self._max_steps is None or self._sums.get("env_steps", 0.0) < self._max_steps

    def _count(self, node: str, life: int, counts: Mapping[str, float]) -> None:
        """Take note of what a node has counted; it never becomes less, but for updates that were lost."""
        known, before = self._lives.get(node, (life, {}))
        if life < known:
            return  # said before it was lost
        if life > known:
            for name, count in before.items():
                self._ended[name] += count
            before = {}
        kept = {name: _kept(name, count, before.get(name, 0.0), life) for name, count in counts.items()}
        for name, count in kept.items():
            self._sums[name] += count - before.get(name, 0.0)
        self._lives[node] = (life, before | kept)
        if self._begun is None and ("env_steps" in counts or counts.get("learner_steps")):
            self._begun = monotonic()

    def evaluation(self, record: dict[str, Any]) -> None:
        """A finished evaluation; `seconds` of training is added here, where both arrive."""
        with self._lock:
            steps = int(self._sums.get("env_steps", 0.0))
            self._evaluations.append({**record, "seconds": self._train_seconds(), "env_steps": steps})
            if len(self._evaluations) > 2 * KEPT:  # who asks has long read the older ones
                self._forgotten += KEPT
                del self._evaluations[:KEPT]

    def note(self, text: str) -> None:
        """A sentence that the user should read; the same one is kept once."""
        with self._lock:
            if text not in self._notes:
                self._notes.append(text)

    def snapshot(self, evaluations_from: int = 0) -> dict[str, Any]:
        """Everything so far; of the evaluations only those from an index on, and of very many the newest."""
        with self._lock:
            now = monotonic()
            return {
                "counts": dict(self._sums),
                "ended": dict(self._ended),
                "lives": {name: [life, dict(counts)] for name, (life, counts) in self._lives.items()},
                "values": dict(self._values),
                "nodes": {name: dict(node) for name, node in self._nodes.items()},
                "silent": {name: now - heard for name, heard in self._heard.items()},  # seconds since its last report
                "evaluations": self._evaluations[max(0, evaluations_from - self._forgotten) :],
                "notes": list(self._notes),
                "train_seconds": self._train_seconds(),
                "first_update": self._first_update,
            }

    def state_dict(self, scope: Scope = "own") -> State:
        """Counts, and where the clock and the evaluations stand; what was read already is with who read it. All nodes
        together count on, by the same clock."""
        with self._lock:
            lasting = {node: counts for node, (life, counts) in self._lives.items() if life == LASTING}
            state: State = {
                "counts": dict(
                    _sums(self._ended, [counts for life, counts in self._lives.values() if life != LASTING])
                ),
                "lives": {node: [LASTING, dict(counts)] for node, counts in lasting.items()},
                "values": dict(self._values),
                "notes": list(self._notes),
                "evaluations": self._forgotten + len(self._evaluations),
                "train_seconds": None if self._begun is None else self._train_seconds(),
            }
            if scope == "exact":
                exact: State = {"ended": dict(self._ended), "begun": self._begun}
                exact["lives"] = {node: [life, dict(counts)] for node, (life, counts) in self._lives.items()}
                state["exact"] = exact | {"evaluations": copy.deepcopy(self._evaluations)}
            return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what a former run has counted; or, with `lives`, in a run whose nodes count on."""
        with self._lock:
            self._ended = defaultdict(float, state["counts"])
            self._lives = {name: (int(life), dict(counts)) for name, (life, counts) in state.get("lives", {}).items()}
            self._values, self._notes = dict(state["values"]), list(state["notes"])
            self._evaluations, self._forgotten = [], state["evaluations"]
            seconds = state["train_seconds"]
            self._begun = None if seconds is None else monotonic() - seconds
            self._first_update = state.get("first_update")
            if "exact" in state:  # by the same clock, and of nodes that count on
                exact = state["exact"]
                self._ended = defaultdict(float, exact["ended"])
                self._lives = {name: (int(life), dict(counts)) for name, (life, counts) in exact["lives"].items()}
                self._begun, self._evaluations = exact["begun"], list(exact["evaluations"])
                self._forgotten = state["evaluations"] - len(self._evaluations)
            self._sums = _sums(self._ended, [counts for _, counts in self._lives.values()])

    def _train_seconds(self) -> float:
        return 0.0 if self._begun is None else monotonic() - self._begun


def _kept(name: str, count: float, before: float, life: int) -> float:
    return count if life == LASTING and name.endswith(LEARNER_STEPS) else max(count, before)


def _sums(ended: Mapping[str, float], lives: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums = defaultdict(float, ended)
    for counts in lives:
        for name, count in counts.items():
            sums[name] += count
    return sums


def next_life(snapshot: Mapping[str, Any], evaluations: int) -> dict[str, Any]:
    """The state in which a service that was lost goes on, by who has read a snapshot and so many evaluations of it."""
    kept = {name: snapshot[name] for name in ("lives", "values", "notes", "first_update")}
    begun = any(snapshot["counts"].get(name) for name in ("env_steps", "learner_steps"))
    seconds = snapshot["train_seconds"] if begun else None
    return kept | {"counts": snapshot["ended"], "evaluations": evaluations, "train_seconds": seconds}


def with_updates(state: Mapping[str, Any], counted: Mapping[str, float]) -> dict[str, Any]:
    """A node's own state that says how many updates the weights have had, by the names of the counts: who learns counts
    on from there."""
    lasting = {name: count for _, counts in state.get("lives", {}).values() for name, count in counts.items()}
    others = {name: count for name, count in state["counts"].items() if not name.endswith(LEARNER_STEPS)}
    return {**state, "counts": others, "lives": {UPDATES: [LASTING, {**lasting, **counted}]}}


class Reporter:
    """A node's own side: gathers cheaply, sends every half second without waiting."""

    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics
        context = current()
        self._node, self._life = context.name, context.restarts
        self._policy = "" if context.policy == MAIN else f"{context.policy}/"
        self._counting = threading.Lock()  # whoever ends the run may report for a loop that is waiting
        self._counts: dict[str, float] = defaultdict(float)  # of this life
        self._lasting: dict[str, float] = {}
        self._times: dict[str, float] = defaultdict(float)
        self._sums: dict[str, tuple[float, int]] = {}
        self.values: dict[str, Any] = {}
        self._sent = Background()
        self._notes: list[tuple[str, Future]] = []
        self._lap = time.perf_counter()
        self._last, self._laps = "starting", 0
        self._following: dict[str, str] = {}  # the activity that came after each, when it was there last
        self._next = 0.0  # the first report goes out at once

    def lap(self, activity: str, waited: float = 0.0) -> None:
        """The time since the last lap went into `activity`, but for the seconds that it `waited` for other nodes."""
        now = time.perf_counter()
        self._times[activity] += now - self._lap - waited
        if waited:
            self._times["waiting"] += waited
        self._lap = now
        self._following[self._last] = activity
        self._last = activity
        self._laps += 1

    def share(self, activity: str, seconds: float) -> None:
        """Of the time of the last lap so much went into `activity`, in another thread."""
        seconds = min(seconds, self._times[self._last])
        self._times[self._last] -= seconds
        self._times[activity] += seconds

    def doing(self) -> tuple[str, int]:
        """The activity that is under way, judged by what followed the last one before, and the number of laps."""
        return self._following.get(self._last, f"what follows {self._last}"), self._laps

    def count(self, name: str, amount: float = 1) -> None:
        with self._counting:
            self._counts[name] += amount

    def set_count(self, name: str, count: float) -> None:
        """What is counted elsewhere."""
        with self._counting:
            self._counts[name] = count

    def set_lasting(self, name: str, count: float) -> None:
        """What counts on through all lives of a run, and may become less."""
        with self._counting:
            self._lasting[name] = count

    def spend_steps(self) -> bool:
        """Tell of the environment steps so far, where those of all actors meet; False when the run has no more."""
        with self._counting:
            steps = self._counts["env_steps"]
        more: bool = retry(lambda: self._metrics.spend_steps(self._node, steps, self._life))
        return more

    def average(self, name: str, value: float) -> None:
        """A value of which a report tells the mean."""
        with self._counting:
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)

    def note(self, text: str) -> None:
        """Tell the user, at once."""
        self._notes.append((text, futures(self._metrics).note(text)))

    def due(self) -> bool:
        return monotonic() >= self._next

    def flush(self) -> Future:
        """Send what has been gathered. Values may be tensors, or whatever float() takes: read here, not on every
        update."""
        self._repeat_lost_notes()
        values, self.values = self.values, {}
        seconds, self._times = self._times, defaultdict(float)
        with self._counting:
            sums, self._sums = self._sums, {}
            counts, lasting = dict(self._counts), dict(self._lasting)
        total = sum(seconds.values()) or 1.0
        measured = {name: float(value) for name, value in values.items()}
        measured |= {name: total_value / number for name, (total_value, number) in sums.items()}
        times = {name: part / total for name, part in seconds.items()}
        if self._policy:  # what is measured of a policy beside the main one has its name; steps are everybody's
            measured = {self._policy + name: value for name, value in measured.items()}
            counts, lasting = (
                {self._policy + name if name in LEARNED else name: count for name, count in counted.items()}
                for counted in (counts, lasting)
            )
        sent: Future = futures(self._metrics).report(self._node, counts, measured, times, self._life, lasting)
        self._sent.add(sent)
        self._next = monotonic() + current().runtime.report_seconds
        return sent

    def flush_and_wait(self) -> None:
        """Send what has been gathered, until it has arrived."""
        retry(lambda: self.flush().result())

    def state_dict(self) -> dict[str, Any]:
        """What has been gathered, but for times, and when it is to be sent."""
        with self._counting:
            counts = dict(self._counts)
        values = {name: float(value) for name, value in self.values.items()}
        told = {"counts": counts, "values": values, "sums": dict(self._sums), "next": self._next}
        return told | {"last": self._last, "laps": self._laps, "following": dict(self._following)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self._counting:
            self._counts = defaultdict(float, state["counts"])
        self.values, self._next = dict(state["values"]), state["next"]
        self._last, self._laps, self._following = state["last"], state["laps"], dict(state["following"])
        self._sums = {name: (total, count) for name, (total, count) in state["sums"].items()}

    def _repeat_lost_notes(self) -> None:
        told, self._notes = self._notes, []
        for text, call in told:
            try:
                if call.done():
                    call.result()
                else:
                    self._notes.append((text, call))
            except NodeDied:
                self.note(text)
