"""What a loop says that it is doing: who ends a run does not wait for one that waits itself."""

from __future__ import annotations

from shoal.loops.loop import Loop
from shoal.services.metrics import Metrics, Reporter


def test_a_loop_that_waits_for_others_says_so_whatever_came_next_before() -> None:
    loop = Loop()
    loop._reporter = Reporter(Metrics())
    for activity in ("inference", "environment", "waiting to insert", "inference", "environment", "inference"):
        loop._reporter.lap(activity)
    loop._reporter.lap("environment")  # the block is full; until now an inference came next
    assert loop.doing() == ("inference", 7)
    with loop._still():
        assert loop.doing() == ("waiting for others", 7)
    assert loop.doing() == ("inference", 7)
