"""What a server counts and measures, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

import bisect
import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[str, float]  # labels, as they are printed, and a number


class Histogram:
    """How often a number was at most so large."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if math.isinf(bound) else f"{bound:g}"}"}} {total}'
        yield f"{name}_sum {self._sum:.9g}"
        yield f"{name}_count {total}"


class ServingMetrics:
    """Of requests, batches and what is served; the door has counts of its own."""

    def __init__(self) -> None:
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()  # how it came, what came of it
        self.observations = 0
        self.latency = Histogram(SECONDS)  # from a request that was read to its answer that was written
        self.computing = Histogram(SECONDS)
        self.batches = Histogram(ROWS)

    def answered(self, way: str, seconds: float) -> None:
        self.requests[way, "ok"] += 1
        self.latency.add(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        self.observations += rows
        self.batches.add(rows)
        self.computing.add(seconds)

    def text(self, gauges: Mapping[str, tuple[str, float]], counts: Mapping[str, int], place: str) -> str:
        """`gauges` by name, each with its help; `counts` are the door's."""
        lines: list[str] = []
        requests = [(_labels(way=way, result=result), float(n)) for (way, result), n in sorted(self.requests.items())]
        door = [(_labels(event=event), float(count)) for event, count in sorted(counts.items())]
        lines += _family("shoal_requests_total", "counter", "Requests for actions, by what came of them.", requests)
        lines += _family(
            "shoal_observations_total", "counter", "Observations that were acted on.", [("", self.observations)]
        )
        lines += _family("shoal_door_events_total", "counter", "What happened at the port.", door)
        for name, (help, value) in gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += _family(name, kind, help, [("", value)])
        lines += _family(
            "shoal_policy_info", "gauge", "Where the served policy was found.", [(_labels(place=place), 1)]
        )
        for name, help, histogram in (
            ("shoal_request_seconds", "From a request to its answer, within the server.", self.latency),
            ("shoal_compute_seconds", "How long batches took to compute.", self.computing),
            ("shoal_batch_rows", "How many observations were computed at once.", self.batches),
        ):
            lines += [f"# HELP {name} {help}", f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> list[str]:
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}", *(f"{name}{labels} {n:g}" for labels, n in samples)]


def _labels(**labels: str) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}"
