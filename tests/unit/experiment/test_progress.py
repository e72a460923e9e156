"""Rates, bottlenecks and what is drawn of them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from shoal.bench.throughput import Counter
from shoal.experiment import view
from shoal.experiment.progress import Curve, Progress, bottleneck, by_role, titles


def snapshot(steps: int, updates: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "counts": {"env_steps": steps, "learner_steps": updates},
        "values": {},
        "nodes": {},
        "evaluations": [],
        "train_seconds": 1.0,
        "first_update": None,
    } | more


def test_rates_are_those_between_reports_not_between_looks() -> None:
    progress = Progress()
    for now, steps in [(0.0, 0), (0.5, 500), (0.7, 500), (1.0, 1000), (1.4, 1000)]:
        progress.take(snapshot(steps), now, 0)
    assert progress.rates["env_steps"] == pytest.approx(1000.0)


def test_rates_fall_soon_after_the_last_report_and_are_never_negative() -> None:
    progress = Progress()
    for now, updates in [(0.0, 0), (0.5, 50), (1.0, 100), (1.5, 150), (2.0, 200)]:
        progress.take(snapshot(1, updates), now, 0)
    assert progress.rates["learner_steps"] == pytest.approx(100.0)
    progress.take(snapshot(1, 200), 4.0, 0)
    assert progress.rates["learner_steps"] == pytest.approx(50.0)
    progress.pass_time(12.5)
    assert progress.rates["learner_steps"] == 0.0
    progress.take(snapshot(1, 150), 13.0, 1)  # its learner was lost
    assert progress.rates["learner_steps"] == 0.0


@pytest.mark.parametrize(
    ("steps", "episodes", "lost", "earlier", "ends"),
    [
        (4_000, 110, 105, 0, True),
        (4_000, 200, 105, 0, False),  # many episodes end as they should
        (4_000, 40, 40, 0, False),  # so few may be a bad beginning
        (400_000, 110, 105, 0, False),  # there is much to learn from between two losses
        (4_000, 110, 105, 100, False),  # those of an earlier life: the environment was mended since
    ],
)
def test_a_run_ends_whose_environments_fail_in_nearly_every_episode(
    steps: int, episodes: int, lost: int, earlier: int, ends: bool
) -> None:
    progress = Progress(environments=4)
    if earlier:
        progress.go_on({"evaluations": 0, "evaluation": None, "best": None})
        progress.take(snapshot(9, counts={"lost_environments": earlier, "episodes": earlier, "env_steps": 9}), 0.5, 0)
    progress.take(snapshot(9, counts={"lost_environments": lost, "episodes": episodes, "env_steps": steps}), 1.0, 0)
    said = progress.hopeless(max_failures=5)
    assert (said is not None) == ends
    assert said is None or "environments fail once in 38 steps, 105 times so far" in said


def test_the_first_confirmed_evaluation_is_kept() -> None:
    progress = Progress()
    records: list[dict[str, Any]] = [{"eval_return": float(number), "reached": number > 1} for number in range(4)]
    assert progress.take(snapshot(1, evaluations=records[:2]), 0.1, 0) == records[:2]
    assert progress.confirmed is None
    progress.take(snapshot(1, evaluations=records[2:]), 0.2, 0)
    assert progress.confirmed == records[2]
    assert progress.evaluations == 4
    assert progress.evaluation == records[3]
    assert progress.evaluated.points == [0.0, 1.0, 2.0, 3.0]


def test_a_curve_keeps_its_course_in_a_bounded_number_of_points() -> None:
    curve = Curve(limit=8)
    for number in range(1000):
        curve.add(float(number))
    assert len(curve.points) <= 8
    assert curve.points == sorted(curve.points)
    assert curve.points[0] < 200
    assert curve.points[-1] > 600


def test_starting_up_is_not_counted_as_work() -> None:
    progress = Progress()
    times = {"starting": 0.9, "learning": 0.05, "waiting for data": 0.05}
    progress.take(snapshot(1, nodes={"learner": {"times": times, "counts": {}, "values": {}}}), 0.1, 0)
    assert progress.mean_times() == {"learner": {"learning": 0.5, "waiting for data": 0.5}}


def test_a_report_that_is_seen_twice_counts_once() -> None:
    progress = Progress()
    first = {"learner": {"times": {"learning": 1.0}, "counts": {"a": 1}, "values": {}}}
    second = {"learner": {"times": {"waiting for data": 1.0}, "counts": {"a": 2}, "values": {}}}
    for nodes in (first, first, first, second):
        progress.take(snapshot(1, nodes=nodes), 0.1, 0)
    assert progress.mean_times()["learner"] == {"learning": 0.5, "waiting for data": 0.5}


def test_nodes_of_one_role_are_shown_together() -> None:
    times = {"actor/0": {"environment": 1.0}, "actor/1": {"environment": 0.5, "inference": 0.5}, "learner": {}}
    roles = {"actor/0": "actor", "actor/1": "actor", "learner": "learner"}
    assert by_role(times, roles) == {"actor": {"environment": 0.75, "inference": 0.25}, "learner": {}}
    assert titles(times, roles) == {"actor": "2 actors", "learner": "learner"}


@pytest.mark.parametrize(
    ("actor_waits", "learner_waits", "expected"),
    [
        (0.6, 0.1, "learner, mostly learning (actor waiting to insert 60% of the time)"),
        (0.1, 0.6, "actor, mostly environment (learner waiting for data 60% of the time)"),
        (0.05, 0.1, "none: no node waits for another"),
    ],
)
def test_the_bottleneck_is_who_waits_least(actor_waits: float, learner_waits: float, expected: str) -> None:
    times = {
        "actor/0": {"environment": 0.8 - actor_waits, "inference": 0.2, "waiting to insert": actor_waits},
        "learner": {"learning": 1.0 - learner_waits, "waiting for data": learner_waits},
        "evaluator": {"waiting": 1.0},
    }
    if actor_waits == 0.6:
        times["actor/0"] = {"environment": 0.2, "inference": 0.2, "waiting to insert": 0.6}
    assert bottleneck(times, {"actor/0": "actor"}) == expected
    judged = times | {"blue/evaluator": {"waiting": 1.0}}
    roles = {"actor/0": "actor", "blue/evaluator": "blue evaluator"}
    assert bottleneck(judged, roles) == expected, "nobody waits for an evaluator, of whatever policy"


def test_a_sparkline_spans_from_the_lowest_to_the_highest() -> None:
    assert view.sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == view.BARS
    assert view.sparkline([3.0, 3.0]) == "▁▁"
    assert view.sparkline([]) == ""
    assert len(view.sparkline([float(number) for number in range(1000)], width=32)) == 32


def test_the_panel_and_the_line_show_returns_rates_times_and_troubles() -> None:
    progress = Progress(target=475.0, stops={"return": 475.0})
    evaluation = {"eval_return": 321.5, "spread": 12.0, "reached": False}
    nodes = {
        "actor/0": {"times": {"environment": 0.7, "waiting to insert": 0.3}, "counts": {}, "values": {}},
        "learner": {"times": {"learning": 1.0}, "counts": {}, "values": {}},
    }
    progress.take(snapshot(0), 0.0, 0)
    progress.take(snapshot(2000, 10, evaluations=[evaluation], nodes=nodes, values={"staleness": 1.5}), 1.0, 2)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.panel("impala on CartPole-v1", progress))
    drawn = console.export_text()
    for text in (
        "impala on CartPole-v1",
        "321.5 ± 12.0",
        "return 321.5 of 475",
        "2,000 steps/s",
        "10 updates/s",
        "data 1.5 updates old",
    ):
        assert text in drawn
    for text in ("environment 70%", "waiting to insert 30%", "2 restarts", "learner, mostly learning"):
        assert text in drawn
    line = view.line(progress)
    for text in ("2,000 steps/s", "eval 321.5", "staleness 1.5", "restarts 2"):
        assert text in line


def test_a_start_that_takes_long_is_told() -> None:
    stream, progress = io.StringIO(), Progress()
    lines = view.Lines(stream)
    lines.update(progress)
    assert stream.getvalue() == ""
    progress.pass_time(6.0)
    lines.update(progress)
    lines.update(progress)
    assert stream.getvalue() == "   6.0 s · no step yet: the nodes are starting\n"
    progress.stops = {"seconds": 5.0}
    assert "counts from the first step" in view.line(progress)


def test_a_rate_is_counted_from_one_report_to_another() -> None:
    counter = Counter()
    for now, count in [
        (0.0, 100),
        (0.2, 100),
        (0.5, 600),
        (0.9, 600),
        (1.0, 1100),
        (1.3, 1100),
        (1.5, 1600),
        (1.9, 1600),
    ]:
        counter.take(now, count)
    assert counter.rate() == pytest.approx(1000.0)
    assert Counter().rate() == 0.0


def test_training_time_begins_with_the_first_step_that_was_reported() -> None:
    progress = Progress()
    progress.take(snapshot(0, train_seconds=0.0), 3.0, 0)
    assert (progress.elapsed, progress.train_seconds) == (3.0, 0.0)
    progress.take(snapshot(10, train_seconds=1.5), 5.0, 0)  # it was made at 3.5
    assert progress.train_seconds == pytest.approx(1.5)
    progress.pass_time(7.0)
    assert (progress.train_seconds, progress.seconds) == (pytest.approx(3.5), 1.5)


def test_on_a_virtual_clock_training_time_begins_with_the_look_before_the_first_step() -> None:
    progress = Progress()
    progress.take(snapshot(0, train_seconds=0.0), 3.0, 0, virtual=True)
    progress.take(snapshot(10, train_seconds=400.0), 5.0, 0, virtual=True)
    assert (progress.train_seconds, progress.seconds) == (pytest.approx(2.0), 400.0)


def test_the_best_is_the_highest_of_all_evaluations() -> None:
    progress = Progress()
    for value in (-7.0, -3.0, -5.0):
        progress.take(snapshot(1, evaluations=[{"eval_return": value, "reached": False}]), 1.0, 0)
    assert (progress.best, progress.evaluations) == (-3.0, 3)
    assert progress.evaluation == {"eval_return": -5.0, "reached": False}


def test_recent_times_follow_slowly_and_totals_add_up() -> None:
    progress = Progress()
    for learning in (1.0, 0.0):
        times = {"learning": learning, "waiting": 1.0 - learning}
        nodes = {"learner": {"times": times, "counts": {}, "values": {}}}
        progress.take(snapshot(1, nodes=nodes), 1.0, 0)
    assert progress.times["learner"] == pytest.approx({"learning": 0.7, "waiting": 0.3})
    assert progress.mean_times()["learner"] == pytest.approx({"learning": 0.5, "waiting": 0.5})


def test_a_rate_that_nobody_confirms_fades() -> None:
    progress = Progress()
    progress.take(snapshot(0), 0.0, 0)
    progress.take(snapshot(1000), 1.0, 0)
    progress.pass_time(2.5)
    assert (progress.rates["env_steps"], progress.quiet) == (1000.0, 1.5), "the next report may be on its way"
    progress.pass_time(4.0)
    assert progress.rates["env_steps"] == 250.0
    progress.pass_time(10.0)
    assert progress.rates["env_steps"] == pytest.approx(100.0)
    progress.pass_time(12.0)
    assert progress.rates["env_steps"] == 0.0


def test_a_checkpoints_place_among_the_evaluations_is_gone_on_from() -> None:
    progress = Progress()
    progress.go_on({"evaluations": 5, "evaluation": {"eval_return": 2.0}, "best": 9.0})
    progress.take(snapshot(1, evaluations=[{"eval_return": 4.0, "reached": False}]), 1.0, 0)
    assert (progress.evaluations, progress.best) == (6, 9.0)


def test_what_is_left_to_a_stop_rule_is_told_at_the_present_rate_and_is_never_less_than_nothing() -> None:
    progress = Progress(stops={"steps": 1000.0, "updates": 50.0})
    progress.take(snapshot(0), 0.0, 0)
    assert progress.towards() == {"steps": (0, 1000.0, None), "updates": (0, 50.0, None)}
    progress.take(snapshot(500, 10), 1.0, 0)
    assert progress.towards() == {"steps": (500, 1000.0, 1.0), "updates": (10, 50.0, 4.0)}
    progress.take(snapshot(1500, 10), 2.0, 0)
    assert progress.towards() == {"steps": (1500, 1000.0, 0.0), "updates": (10, 50.0, 8.0)}


def lost_progress(environments: int, episodes: int, lost: int, restarts: int = 0, lost_episodes: int = 0) -> Progress:
    progress = Progress(environments=environments)
    counts = {"env_steps": 9, "episodes": episodes, "lost_environments": lost, "lost_episodes": lost_episodes}
    progress.take(snapshot(9, counts=counts), 1.0, restarts)
    return progress


@pytest.mark.parametrize(
    ("environments", "episodes", "lost", "restarts", "lost_episodes", "says"),
    [
        (4, 100, 9, 0, 0, None),
        (4, 100, 30, 0, 0, "30% of the episodes were lost by faults of the environment (30 environments replaced)"),
        (256, 30, 30, 0, 0, None),  # the first episodes that end are those that were cut short
        (256, 300, 300, 0, 0, "100% of the episodes"),
        (8, 40, 0, 2, 400, None),  # machines that were lost are no fault of the environment
        (8, 40, 0, 46, 360, "90% of the episodes were lost by faults of the environment (46 restarts)"),
    ],
)
def test_losses_are_told_where_they_make_training_meaningless(
    environments: int, episodes: int, lost: int, restarts: int, lost_episodes: int, says: str | None
) -> None:
    said = lost_progress(environments, episodes, lost, restarts, lost_episodes).too_many_lost()
    assert (said is None) if says is None else (said is not None and says in said)


def test_lost_environments_are_shown_with_their_share_of_the_episodes() -> None:
    assert "30 environments replaced (30.0% of the episodes)" in view.line(lost_progress(4, 100, 30))


def test_the_parts_of_a_nodes_time_are_parts_of_one_from_its_first_reports_on() -> None:
    progress = Progress()
    reports = [{"starting": 0.9, "environment": 0.1}, {"environment": 0.4, "weights": 0.6}, {"waiting to insert": 1.0}]
    for number, times in enumerate(reports):
        progress.take(snapshot(1, nodes={"actor/0": {"times": times, "values": {}}}), 0.1 * number, 0)
        assert sum(progress.times["actor/0"].values()) == pytest.approx(1.0)
