"""Metrics: every node reports counts, values and where its time goes; the service adds them up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from shoal.program import Background, Future, NodeDied, current, futures
from shoal.sync import Condition, monotonic, scheduler

PERIOD = 0.5  # seconds between two reports of a node
VIRTUAL_PERIOD = 0.02  # the same on a virtual clock, on which a step of any node takes a thousandth of a second
KEPT = 1000  # evaluations, at least


class Metrics:
    """Counts are summed over nodes, values are the latest; notes are kept, and the newest evaluations."""

    def __init__(self, max_steps: int | None = None) -> None:  # that all environments together may make
        self._max_steps = max_steps
        self._lock = Condition()
        self._counts: dict[str, float] = defaultdict(float)
        self._values: dict[str, float] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._heard: dict[str, float] = {}
        self._evaluations: list[dict[str, Any]] = []
        self._forgotten = 0  # evaluations before these
        self._notes: list[str] = []
        self._first_step: float | None = None
        self._first_update: float | None = None

    def report(self, node: str, counts: dict[str, float], values: dict[str, float], times: dict[str, float]) -> None:
        with self._lock:
            now = monotonic()
            if "env_steps" in counts and self._first_step is None:
                self._first_step = now
            if counts.get("learner_steps") and self._first_update is None:
                self._first_update = now
            for name, count in counts.items():
                self._counts[name] += count
            self._values.update(values)
            self._nodes[node] = {"times": times, "counts": counts, "values": values}
            self._heard[node] = now

    def step_limit(self) -> int | None:
        return self._max_steps

    def spend_steps(self, steps: float) -> bool:
        """Count environment steps that were made; False when there are as many as the run was given, or more."""
        with self._lock:
            self._counts["env_steps"] += steps
            if self._first_step is None:
                self._first_step = monotonic()
            return self._max_steps is None or self._counts["env_steps"] < self._max_steps

    def evaluation(self, record: dict[str, Any]) -> None:
        """A finished evaluation; `seconds` since the first actor step is added here, where both arrive."""
        with self._lock:
            steps = int(self._counts["env_steps"])
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
                "counts": dict(self._counts),
                "values": dict(self._values),
                "nodes": {name: dict(node) for name, node in self._nodes.items()},
                "silent": {name: now - heard for name, heard in self._heard.items()},  # seconds since its last report
                "evaluations": self._evaluations[max(0, evaluations_from - self._forgotten) :],
                "notes": list(self._notes),
                "train_seconds": self._train_seconds(),
                "first_update": self._first_update,
            }

    def state_dict(self) -> dict[str, Any]:
        """Counts, and where the clock and the evaluations stand; what was read already is with who read it."""
        with self._lock:
            return {
                "counts": dict(self._counts),
                "values": dict(self._values),
                "notes": list(self._notes),
                "evaluations": self._forgotten + len(self._evaluations),
                "train_seconds": None if self._first_step is None else self._train_seconds(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self._counts = defaultdict(float, state["counts"])
            self._values, self._notes = dict(state["values"]), list(state["notes"])
            self._evaluations, self._forgotten = [], state["evaluations"]
            seconds = state["train_seconds"]
            self._first_step = None if seconds is None else monotonic() - seconds

    def _train_seconds(self) -> float:
        return 0.0 if self._first_step is None else monotonic() - self._first_step


class Reporter:
    """A node's own side: gathers cheaply, sends every half second without waiting."""

    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics
        self._node = current().name
        self._counting = threading.Lock()  # whoever ends the run may report for a loop that is waiting
        self._counts: dict[str, float] = defaultdict(float)
        self._times: dict[str, float] = defaultdict(float)
        self._sums: dict[str, tuple[float, int]] = {}
        self.values: dict[str, Any] = {}
        self._sent: list[tuple[Future, dict[str, float]]] = []
        self._notes = Background()
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

    def doing(self) -> tuple[str, int]:
        """The activity that is under way, judged by what followed the last one before, and the number of laps."""
        return self._following.get(self._last, f"what follows {self._last}"), self._laps

    def count(self, name: str, amount: float = 1) -> None:
        with self._counting:
            self._counts[name] += amount

    def take(self, name: str) -> float:
        """What was counted under a name since the last report; it is the caller's now to tell."""
        with self._counting:
            return self._counts.pop(name, 0.0)

    def average(self, name: str, value: float) -> None:
        """A value of which a report tells the mean."""
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value, count + 1)

    def note(self, text: str) -> None:
        """Tell the user, at once."""
        self._notes.add(futures(self._metrics).note(text))

    def due(self) -> bool:
        return monotonic() >= self._next

    def flush(self) -> Future:
        """Send what has been gathered. Values may be tensors, or whatever float() takes: read here, not on every
        update."""
        self._look_at_sent()
        values, self.values = self.values, {}
        sums, self._sums = self._sums, {}
        seconds, self._times = self._times, defaultdict(float)
        with self._counting:
            counts, self._counts = self._counts, defaultdict(float)
        total = sum(seconds.values()) or 1.0
        measured = {name: float(value) for name, value in values.items()}
        measured |= {name: total_value / number for name, (total_value, number) in sums.items()}
        times = {name: part / total for name, part in seconds.items()}
        sent: Future = futures(self._metrics).report(self._node, dict(counts), measured, times)
        self._sent.append((sent, counts))
        self._next = monotonic() + (PERIOD if scheduler() is None else VIRTUAL_PERIOD)
        return sent

    def _look_at_sent(self) -> None:
        """What the service has not taken because it was lost is counted again; any other error is raised here."""
        self._notes.check()
        waiting, self._sent = self._sent, []
        for sent, counts in waiting:
            if not sent.done():
                self._sent.append((sent, counts))
                continue
            try:
                sent.result()
            except NodeDied:
                for name, amount in counts.items():
                    self.count(name, amount)
