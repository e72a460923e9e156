"""The metrics service keeps what somebody may still ask for, and not more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal import sync
from shoal.program import Capabilities, Context, NodeDied
from shoal.runtime import inline
from shoal.services.metrics import KEPT, LASTING, UPDATES, Metrics, Reporter, next_life, with_updates


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


def test_steps_are_spent_from_one_budget() -> None:
    metrics = Metrics(max_steps=100)
    assert metrics.step_limit() == 100
    spent = [metrics.spend_steps(*told) for told in (("a", 40), ("b", 40), ("b", 40), ("a", 80))]
    assert spent == [True, True, True, False], "who says the same again has not made further steps"
    assert metrics.snapshot()["counts"]["env_steps"] == 120
    assert Metrics().step_limit() is None


def test_a_report_tells_the_mean_of_its_episodes() -> None:
    metrics = Metrics()
    reporter = Reporter(metrics)
    for value in (10.0, 20.0, 60.0):
        reporter.average("actor_return", value)
    reporter.flush()
    assert metrics.snapshot()["values"]["actor_return"] == 30.0
    reporter.average("actor_return", 5.0)
    reporter.flush()
    assert metrics.snapshot()["values"]["actor_return"] == 5.0


def test_steps_that_were_told_for_the_budget_are_not_counted_again_by_a_report() -> None:
    metrics = Metrics(max_steps=100)
    reporter = Reporter(metrics)
    reporter.count("env_steps", 7)
    assert reporter.spend_steps()
    reporter.flush()
    assert metrics.snapshot()["counts"] == {"env_steps": 7}


class Pending:
    """An answer that comes when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def result(self) -> None:
        if self.error is not None:
            raise self.error


class Unreachable:
    """A metrics service whose answers are errors."""

    def __init__(self, error: Exception) -> None:
        self.future = self
        self.error = error
        self.reports: list[dict[str, float]] = []
        self.notes: list[str] = []

    def report(self, node: str, counts: dict[str, float], values: Any, times: Any, life: int, lasting: Any) -> Pending:
        self.reports.append(counts)
        return Pending(self.error if len(self.reports) == 1 else None)

    def note(self, text: str) -> Pending:
        self.notes.append(text)
        return Pending(self.error if len(self.notes) == 1 else None)


def test_counts_that_were_lost_with_the_service_are_reported_to_its_next_life() -> None:
    service = Unreachable(NodeDied("metrics"))
    reporter = Reporter(service)
    reporter.count("env_steps", 5)
    reporter.flush()
    reporter.count("env_steps", 2)
    reporter.flush()
    reporter.flush()
    assert service.reports == [{"env_steps": 5}, {"env_steps": 7}, {"env_steps": 7}]


def test_a_note_that_was_lost_with_the_service_is_told_to_its_next_life() -> None:
    service = Unreachable(NodeDied("metrics"))
    reporter = Reporter(service)
    reporter.note("hello")
    reporter.flush()
    reporter.flush()
    assert service.notes == ["hello", "hello"]


def test_counts_never_fall_and_never_double_when_nodes_and_the_service_are_lost() -> None:
    before = Metrics()
    before.report("actor/0", {"env_steps": 10}, {}, {}, life=0)
    before.report("actor/1", {"env_steps": 5}, {}, {}, life=0)
    before.report("actor/0", {"env_steps": 3}, {}, {}, life=1)  # its first life has ended
    before.report("actor/0", {"env_steps": 9}, {}, {}, life=0)  # and this was under way
    before.evaluation({"version": 1})
    seen = before.snapshot()
    assert seen["counts"] == {"env_steps": 18}
    before.report("actor/1", {"env_steps": 6}, {}, {}, life=0)  # nobody has read this
    after = Metrics()
    after.load_state_dict(next_life(seen, 1))
    assert after.snapshot()["counts"] == {"env_steps": 18}
    after.report("actor/1", {"env_steps": 8}, {}, {}, life=0)
    after.report("actor/0", {"env_steps": 1}, {}, {}, life=2)
    found = after.snapshot(1)
    assert found["counts"] == {"env_steps": 10 + 3 + 1 + 8}
    assert found["evaluations"] == []
    assert found["train_seconds"] > 0.0


def test_an_error_that_nobody_waited_for_is_raised_with_the_next_report() -> None:
    reporter = Reporter(Unreachable(ValueError("no such thing")))
    reporter.flush()
    with pytest.raises(ValueError, match="no such thing"):
        reporter.flush()
    reporter = Reporter(Unreachable(ValueError("no such note")))
    reporter.note("hello")
    with pytest.raises(ValueError, match="no such note"):
        reporter.flush()


def test_a_node_says_what_it_is_doing_by_what_followed_the_last_time() -> None:
    reporter = Reporter(Metrics())
    assert reporter.doing() == ("what follows starting", 0)
    for activity in ("inference", "environment", "inference"):
        reporter.lap(activity)
    assert reporter.doing() == ("environment", 3)


def test_counts_the_clock_and_the_place_among_evaluations_go_on() -> None:
    before = Metrics()
    before.report("actor", {"env_steps": 12}, {"x": 1.0}, {})
    before.note("something")
    before.evaluation({"version": 1})
    after = Metrics()
    after.load_state_dict(before.state_dict())
    after.report("actor", {"env_steps": 3}, {}, {})
    after.evaluation({"version": 2})
    found = after.snapshot(1)
    assert found["counts"] == {"env_steps": 15}
    assert found["notes"] == ["something"]
    assert [row["version"] for row in found["evaluations"]] == [2]
    assert found["train_seconds"] >= 0.0
    assert Metrics().state_dict()["train_seconds"] is None


class Stopped:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 5.0

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None, why: str) -> bool:
        return predicate()


def test_the_clock_is_that_of_the_runtime() -> None:
    sync.set_scheduler(Stopped())
    try:
        metrics = Metrics()
        metrics.report("actor", {"env_steps": 1, "learner_steps": 1}, {}, {})
        metrics.evaluation({})
        found = metrics.snapshot()
    finally:
        sync.set_scheduler(None)
    assert (found["train_seconds"], found["first_update"], found["evaluations"][0]["seconds"]) == (0.0, 5.0, 0.0)


def test_time_that_was_waited_within_an_activity_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 14.0, 15.0])
    monkeypatch.setattr("shoal.services.metrics.time.perf_counter", lambda: next(now))
    metrics = Metrics()
    reporter = Reporter(metrics)
    reporter.lap("learning", waited=3.0)
    reporter.lap("publishing")
    reporter.flush()
    (node,) = metrics.snapshot()["nodes"].values()
    assert node["times"] == pytest.approx({"learning": 0.2, "waiting": 0.6, "publishing": 0.2})


class Ticking(Stopped):
    """A clock that the test turns."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Ticking]:
    made = Ticking()
    sync.set_scheduler(made)
    yield made
    sync.set_scheduler(None)


def test_the_first_step_and_the_first_update_are_the_first(clock: Ticking) -> None:
    metrics = Metrics()
    for clock.now, counts in ((2.0, {"env_steps": 1}), (3.0, {"learner_steps": 1}), (7.0, {"learner_steps": 1})):
        metrics.report("node", counts, {}, {})
        metrics.report("node", {"env_steps": 0}, {}, {})
    found = metrics.snapshot()
    assert (found["first_update"], found["train_seconds"]) == (3.0, 5.0)
    assert found["silent"] == {"node": 0.0}


def test_a_note_is_kept_once() -> None:
    metrics = Metrics()
    for text in ("one", "two", "one"):
        metrics.note(text)
    assert metrics.snapshot()["notes"] == ["one", "two"]


def test_a_report_that_comes_late_takes_nothing_back_and_adds_nothing_later() -> None:
    metrics = Metrics()
    for steps in (5, 3, 5, 6):
        metrics.report("actor/0", {"env_steps": steps}, {}, {})
    assert metrics.snapshot()["counts"] == {"env_steps": 6}
    assert metrics.snapshot()["lives"]["actor/0"] == [0, {"env_steps": 6}]


def test_the_last_step_of_the_budget_is_the_last() -> None:
    metrics = Metrics(max_steps=10)
    assert [metrics.spend_steps("a", 9), metrics.spend_steps("b", 1)] == [True, False]


def test_the_place_among_evaluations_counts_those_that_were_forgotten() -> None:
    metrics = Metrics()
    for version in range(2 * KEPT + 5):
        metrics.evaluation({"version": version})
    assert metrics.state_dict()["evaluations"] == 2 * KEPT + 5


@pytest.mark.parametrize("runtime", [Capabilities(), inline.CAPABILITIES], ids=["processes", "inline"])
def test_a_report_is_due_at_once_and_then_after_its_runtimes_period(
    runtime: Capabilities, clock: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.services.metrics.current", lambda: Context(runtime=runtime))
    reporter, due, period = Reporter(Metrics()), [], runtime.report_seconds
    for clock.now in (0.0, 0.01, period, period + 0.01):
        due.append(reporter.due())
        if reporter.due():
            reporter.flush()
    assert due == [True, False, True, False]


def test_the_clock_goes_on_where_it_was(clock: Ticking) -> None:
    before, after = Metrics(), Metrics()
    clock.now = 10.0
    before.report("actor", {"env_steps": 1}, {}, {})
    clock.now = 17.0
    state = before.state_dict()
    clock.now = 100.0  # another process, another clock
    after.load_state_dict(state)
    clock.now = 102.0
    assert after.snapshot()["train_seconds"] == 9.0


def test_a_service_that_was_lost_before_the_first_step_has_no_clock_yet(clock: Ticking) -> None:
    before, after = Metrics(), Metrics()
    before.report("learner", {"learner_steps": 0}, {}, {})
    state = next_life(before.snapshot(), 0)
    assert state["train_seconds"] is None
    after.load_state_dict(state)
    clock.now = 5.0
    after.report("actor", {"env_steps": 1}, {}, {})
    clock.now = 7.0
    assert after.snapshot()["train_seconds"] == 2.0
    after.report("learner", {"learner_steps": 1}, {}, {})
    again = Metrics()
    again.load_state_dict(next_life(after.snapshot(), 0))
    assert again.snapshot()["first_update"] == 7.0


def test_evaluations_of_an_exact_state_keep_their_places() -> None:
    before, after = Metrics(), Metrics()
    for version in range(2 * KEPT + 3):
        before.evaluation({"version": version})
    after.load_state_dict(before.state_dict("exact"))
    place = 2 * KEPT + 1
    assert [row["version"] for row in after.snapshot(place)["evaluations"]] == [place, place + 1]
    assert after.state_dict()["evaluations"] == before.state_dict()["evaluations"] == 2 * KEPT + 3


def test_updates_that_were_lost_with_a_learner_are_not_counted_as_the_weights_have_not_had_them() -> None:
    metrics = Metrics()
    metrics.report(UPDATES, {"learner_steps": 9, "gradients": 20}, {}, {}, LASTING)
    metrics.report(UPDATES, {"learner_steps": 6, "gradients": 18}, {}, {}, LASTING)  # from its newest snapshot
    assert metrics.snapshot()["counts"] == {"learner_steps": 6, "gradients": 20}
    metrics.report(UPDATES, {"learner_steps": 8}, {}, {}, LASTING)
    assert metrics.snapshot()["counts"]["learner_steps"] == 8
    after = Metrics()
    after.load_state_dict(with_updates(metrics.state_dict(), {"learner_steps": 7.0}))
    assert after.snapshot()["counts"] == {"learner_steps": 7, "gradients": 20}


def test_what_counts_on_through_all_lives_of_a_run_is_in_a_state_once() -> None:
    before, after = Metrics(), Metrics()
    before.report("gradients", {"learner_steps": 5}, {}, {}, LASTING)
    before.report("actor/0", {"env_steps": 9}, {}, {}, 0)
    after.load_state_dict(before.state_dict())
    assert after.snapshot()["counts"] == {"learner_steps": 5, "env_steps": 9}
    after.report("gradients", {"learner_steps": 6}, {}, {}, LASTING)
    after.report("actor/0", {"env_steps": 2}, {}, {}, 0)
    assert after.snapshot()["counts"] == {"learner_steps": 6, "env_steps": 11}
