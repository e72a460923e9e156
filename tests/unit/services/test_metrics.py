"""The metrics service keeps what somebody may still ask for, and not more."""

from __future__ import annotations

from shoal.services.metrics import KEPT, Metrics


def test_evaluations_are_read_from_an_index_on() -> None:
    metrics = Metrics()
    for version in range(3):
        metrics.evaluation({"version": version})
    assert [row["version"] for row in metrics.snapshot()["evaluations"]] == [0, 1, 2]
    assert [row["version"] for row in metrics.snapshot(2)["evaluations"]] == [2]
    assert metrics.snapshot(3)["evaluations"] == []


def test_a_reader_that_keeps_up_misses_nothing_and_memory_stays_bounded() -> None:
    metrics, seen = Metrics(), []
    for version in range(5 * KEPT):
        metrics.evaluation({"version": version})
        if version % 100 == 99:
            seen += [row["version"] for row in metrics.snapshot(len(seen))["evaluations"]]
    assert seen == list(range(5 * KEPT))
    assert KEPT <= len(metrics.snapshot()["evaluations"]) <= 2 * KEPT
