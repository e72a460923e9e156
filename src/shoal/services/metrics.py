"""Metrics: every node reports counts, values and where its time goes; the service adds them up."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from shoal.program import Future, current, futures
from shoal.sync import Condition, monotonic

PERIOD = 0.5  # seconds between two reports of a node
KEPT = 1000  # evaluations, at least


class Metrics:
    """Counts are summed over nodes, values are the latest; notes are kept, and the newest evaluations."""

    def __init__(self) -> None:
        self._lock = Condition()
        self._counts: dict[str, float] = defaultdict(float)
        self._values: dict[str, float] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._evaluations: list[dict[str, Any]] = []
        self._forgotten = 0  # evaluations before these
        self._notes: list[str] = []
        self._first_step: float | None = None
        self._first_update: float | None = None

    def report(self, node: str, counts: dict[str, float], values: dict[str, float], times: dict[str, float]) -> None:
        with self._lock:
            now = time.monotonic()
            if "env_steps" in counts and self._first_step is None:
                self._first_step = now
            if counts.get("learner_steps") and self._first_update is None:
                self._first_update = now
            for name, count in counts.items():
                self._counts[name] += count
            self._values.update(values)
            self._nodes[node] = {"times": times, "counts": counts, "values": values}

    def evaluation(self, record: dict[str, Any]) -> None:
        """A finished evaluation; `seconds` since the first actor step is added here, where both arrive."""
        with self._lock:
            now = time.monotonic()
            since = now if self._first_step is None else self._first_step
            steps = int(self._counts["env_steps"])
            self._evaluations.append({**record, "seconds": now - since, "env_steps": steps})
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
            now = time.monotonic()
            return {
                "counts": dict(self._counts),
                "values": dict(self._values),
                "nodes": {name: dict(node) for name, node in self._nodes.items()},
                "evaluations": self._evaluations[max(0, evaluations_from - self._forgotten) :],
                "notes": list(self._notes),
                "train_seconds": 0.0 if self._first_step is None else now - self._first_step,
                "first_update": self._first_update,
            }


class Reporter:
    """A node's own side: gathers cheaply, sends every half second without waiting."""

    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics
        self._node = current().name
        self._counts: dict[str, float] = defaultdict(float)
        self._times: dict[str, float] = defaultdict(float)
        self.values: dict[str, Any] = {}
        self._lap = time.perf_counter()
        self._next = 0.0  # the first report goes out at once

    def lap(self, activity: str, waited: float = 0.0) -> None:
        """The time since the last lap went into `activity`, but for the seconds that it `waited` for other nodes."""
        now = time.perf_counter()
        self._times[activity] += now - self._lap - waited
        if waited:
            self._times["waiting"] += waited
        self._lap = now

    def count(self, name: str, amount: float = 1) -> None:
        self._counts[name] += amount

    def note(self, text: str) -> None:
        """Tell the user, at once."""
        futures(self._metrics).note(text)

    def due(self) -> bool:
        return monotonic() >= self._next

    def flush(self) -> Future:
        """Send what has been gathered. Values may be tensors, or whatever float() takes: read here, not on every
        update."""
        values = {name: float(value) for name, value in self.values.items()}
        total = sum(self._times.values()) or 1.0
        times = {name: seconds / total for name, seconds in self._times.items()}
        sent: Future = futures(self._metrics).report(self._node, dict(self._counts), values, times)
        self._counts.clear()
        self._times.clear()
        self.values.clear()
        self._next = monotonic() + PERIOD
        return sent
