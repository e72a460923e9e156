"""What the machine allows: the arithmetic of the ceiling, and that every part is measured at the run's own sizes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from shoal.bench import throughput
from shoal.bench.limits import (
    Capture,
    Limits,
    _acting_batch,
    _learner_threads,
    _seconds_each,
    _training,
    gradients_per_update,
    limitless,
    lines,
    measure_limits,
    report,
    updates_per_step,
)
from shoal.bench.throughput import Counter, Measurement, reached
from shoal.cli.main import main
from shoal.config import apply_preset
from shoal.errors import UserError
from shoal.experiment.environments import describe_env
from shoal.runs import registry
from shoal.runs.options import RunOptions
from shoal.runtime import RunFailed

# one core: a step takes 1 + 1 ms, an update of 10 rows 20 ms; so on two cores 2 / (2 + 20/10) ms = 500 steps/s
LIMITS = Limits(
    cores=2,
    environment=1_000.0,
    inference=1_000.0,
    training=50.0,
    environments=4,
    inference_batch=4,
    training_batch=10,
)


def config_of(name: str, **fields: Any) -> Any:
    page = registry.load(name)
    return page.Config(preset="none", **fields)


def test_the_ceiling_is_all_cores_over_the_sum_of_the_parts() -> None:
    assert LIMITS.ceiling(1 / 10) == pytest.approx(500.0)
    assert LIMITS.ceiling(0.0) == pytest.approx(1_000.0)
    assert LIMITS.busy(env_steps=250.0, updates=25.0) == pytest.approx(0.5)


def test_all_threads_of_a_learner_count() -> None:
    """An update of 20 ms on two cores is as dear as one of 40 ms on one."""
    both, one = dataclasses.replace(LIMITS, threads=2), dataclasses.replace(LIMITS, training=25.0)
    assert both.ceiling(1 / 10) == pytest.approx(one.ceiling(1 / 10)) == pytest.approx(1_000 / 3)
    assert "on 2 cores, 10 at once" in lines(both, config_of("impala"))[2]


def test_training_is_measured_with_the_threads_that_a_learner_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _learner_threads(config_of("sac"), cores=2) == [1, 2]
    assert _learner_threads(config_of("sac", learner_threads=2), cores=8) == [2]
    assert _learner_threads(config_of("sac", learner_threads=1), cores=8) == [1]
    assert _learner_threads(config_of("a3c"), cores=8) == [1]
    seconds = {1: 3.0, 2: 2.0, 4: 0.5}
    monkeypatch.setattr("shoal.bench.limits._seconds_each", lambda call, _: seconds[torch.get_num_threads()])
    monkeypatch.setattr("shoal.bench.limits._update_of", lambda found: None)
    before = torch.get_num_threads()
    try:
        assert _training(Capture(dict), [1, 2], 1.0) == (1, 1 / 3)  # two threads would take four seconds of all cores
        assert _training(Capture(dict), [1, 4], 1.0) == (4, 2.0)
    finally:
        torch.set_num_threads(before)


def test_a_part_is_measured_at_least_once_however_short_the_time() -> None:
    calls: list[int] = []
    assert _seconds_each(lambda: calls.append(1), 1e-9) > 0.0
    assert len(calls) == 2  # the first is not counted


def test_a_run_that_fails_while_it_is_measured_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RunFailed("actor/0", "node 'actor/0' raised RuntimeError: boom")

    monkeypatch.setattr("shoal.bench.limits.measure_limits", fails)
    assert main(["bench", "limits", "impala", "--env", "CartPole-v1"]) == 1
    assert capsys.readouterr().err.endswith("shoal: node 'actor/0' raised RuntimeError: boom\n")


def test_the_share_is_that_of_the_updates_that_were_made() -> None:
    rates = {"env_steps_per_second": 250.0, "learner_steps_per_second": 12.5}
    told = reached(LIMITS, rates, gradients=2)
    assert told["share_of_ceiling"] == 0.5
    assert told["ceiling"] == 500.0
    assert told["limits"]["training"] == 50.0


def test_rollouts_are_trained_once_and_items_as_often_as_the_limiter_says() -> None:
    assert updates_per_step(config_of("impala"), rows=10) == 0.1
    assert updates_per_step(config_of("apex_dqn", samples_per_insert=2.0, batch=64), rows=64) == 2 / 64
    assert updates_per_step(config_of("r2d2", samples_per_insert=2.0, batch=32, period=15), rows=960) == 2 / 480
    assert updates_per_step(config_of("apex_dqn"), rows=64) is None


def test_a_step_of_the_gradient_service_takes_several_gradients() -> None:
    assert gradients_per_update(config_of("a3c", reduce=3)) == 3
    assert gradients_per_update(config_of("a3c", synchronous=True, actors=4)) == 4
    assert gradients_per_update(config_of("impala")) == 1


def test_people_read_each_part_and_the_ceiling() -> None:
    told = lines(LIMITS, config_of("impala"))
    assert " ".join(told[2].split()) == "training 500 rows/s on one core, 10 at once"
    assert " ".join(told[3].split()) == "ceiling 500 env steps/s on 2 cores, 1 rows trained for each"
    assert "its own pace" in lines(LIMITS, config_of("apex_dqn"))[3]
    assert report(LIMITS, config_of("impala"))["ceiling"] == 500.0
    assert report(LIMITS, config_of("apex_dqn"))["ceiling"] is None


@pytest.mark.parametrize(
    ("name", "fields", "rows"),
    [
        ("impala", {"unroll": 5, "batch": 4, "queue": 4}, 20),
        ("ppo", {"unroll": 5, "actors": 2, "minibatches": 2}, 40),
        ("ppo", {"unroll": 5, "actors": 2, "minibatches": 2, "learners": 2}, 40),  # an update of both together
        ("a3c", {"unroll": 5, "actors": 1}, 20),
        ("apex_dqn", {"batch": 16, "learning_starts": 32, "rows": 4}, 16),
    ],
)
def test_parts_have_the_sizes_of_the_run(name: str, fields: dict[str, Any], rows: int) -> None:
    page = registry.load(name)
    cfg = page.Config(env="CartPole-v1", envs_per_actor=4, hidden=(8,), preset="none", **fields)
    env = describe_env(cfg)
    limits = measure_limits(page, apply_preset(cfg, page.PRESETS, env.kind), env, seconds=0.01)
    assert (limits.environments, limits.inference_batch, limits.training_batch) == (4, 4, rows)
    assert min(limits.environment, limits.inference, limits.training) > 1.0


def test_central_inference_is_measured_with_the_requests_it_puts_together() -> None:
    page = registry.load("impala")
    cfg = page.Config(env="CartPole-v1", envs_per_actor=4, actors=3, inference="central", batch=4, queue=8, hidden=(8,))
    limits = measure_limits(page, cfg, describe_env(cfg), seconds=0.01)
    assert (limits.environments, limits.inference_batch) == (4, 12)


@pytest.mark.parametrize(
    ("servers", "most", "expected"),
    [(1, 0, 12), (2, 0, 8), (3, 0, 4), (5, 0, 4), (2, 6, 6), (2, 100, 8)],
)
def test_a_server_answers_the_requests_of_the_most_actors_that_any_has(servers: int, most: int, expected: int) -> None:
    central = {"inference": "central", "inference_servers": servers, "inference_batch": most}
    assert _acting_batch(config_of("impala", actors=3, envs_per_actor=4, **central)) == expected


def test_a_rate_counts_from_one_change_to_another() -> None:
    counter = Counter()
    for now, count in [(0.0, 5), (0.5, 5), (1.0, 100), (1.5, 100), (2.0, 200), (3.0, 300), (3.5, 300)]:
        counter.take(now, count)
    assert counter.rate() == 100.0


def test_learners_that_report_an_update_one_after_the_other_count_as_one() -> None:
    counter, seen = Counter(), 0
    counter.take(0.5, seen)
    for moment in range(1, 4):  # an update a second, in which two learners train on 50 rows each
        for delay in (0.0, 0.02):
            seen += 50
            counter.take(moment + delay, seen)
        counter.take(moment + 0.5, seen)
    assert counter.rate() == 100.0
    alone = Counter()
    for now, count in [(0.0, 0), (1.0, 50), (1.02, 100)]:
        alone.take(now, count)
    assert alone.rate() == 0.0, "a single update says nothing of a rate"


def test_repeats_have_seeds_of_their_own_and_their_medians_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def measure(page: Any, cfg: Any, env: Any, options: RunOptions, seconds: float) -> Measurement:
        asked.append((options.seed, seconds))
        rate = {5: 300.0, 6: 100.0, 7: 200.0}[options.seed]
        return Measurement(seconds, 10, rate, 2 * rate, rate / 10, None, 0, f"learner of seed {options.seed}")

    monkeypatch.setattr(throughput, "measure", measure)
    page, shown = registry.load("impala"), list[Measurement]()
    cfg = page.Config(env="CartPole-v1", preset="none")
    found = throughput.throughput("impala", page, cfg, describe_env(cfg), RunOptions(seed=5), 1.5, 3, shown.append)
    assert asked == [(5, 1.5), (6, 1.5), (7, 1.5)]
    rates = ("env_steps_per_second", "trained_steps_per_second", "learner_steps_per_second")
    assert [found[rate] for rate in rates] == [200.0, 400.0, 20.0]
    assert [run["env_steps_per_second"] for run in found["runs"]] == [300.0, 100.0, 200.0]
    assert (found["bottleneck"], len(shown), "ceiling" in found) == ("learner of seed 7", 3, False)


def test_the_commands_measure_as_was_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def limits(page: Any, cfg: Any, env: Any, seconds: float = 1.0, seed: int = 0) -> Limits:
        asked.append((cfg.unroll, env.name, seconds, seed))
        return LIMITS

    def measured(name: str, page: Any, cfg: Any, env: Any, options: RunOptions, *rest: Any) -> dict[str, Any]:
        seconds, repeat, _, found = rest
        asked.append((name, cfg.unroll, env.name, options.runtime, options.seed, seconds, repeat, found))
        return {"bench": "throughput"}

    monkeypatch.setattr("shoal.bench.limits.measure_limits", limits)
    monkeypatch.setattr("shoal.bench.throughput.throughput", measured)
    typed = ["impala", "--env", "CartPole-v1", "--preset", "none", "--unroll", "5", "--seed", "7", "--json"]
    assert main(["bench", "limits", *typed, "--part-seconds", "0.25"]) == 0
    assert json.loads(capsys.readouterr().out)["ceiling"] == 500.0
    assert main(["bench", "throughput", *typed, "--runtime", "inline", "--seconds", "1.5", "--repeat", "2"]) == 0
    assert asked == [(5, "CartPole-v1", 0.25, 7), ("impala", 5, "CartPole-v1", "inline", 7, 1.5, 2, None)]


def test_what_cannot_run_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def limits(*_: Any) -> Limits:
        raise AssertionError("measured")

    monkeypatch.setattr("shoal.bench.limits.measure_limits", limits)
    assert main(["bench", "throughput", "r2d2", "--capacity", str(10**12)]) == 2
    assert "--capacity" in capsys.readouterr().err


def test_what_has_no_such_ceiling_is_refused() -> None:
    cfg = config_of("impala")
    assert limitless(cfg) is None
    for hands in ({"learner_threads": 2}, {"learners": 2}):  # the same work, in two hands
        assert limitless(dataclasses.replace(cfg, **hands)) is None
    for change in ({"device": "cuda"}, {"acting_device": "cuda"}):
        other = dataclasses.replace(cfg, **change)
        with pytest.raises(UserError, match="ceiling is that of"):
            measure_limits(registry.load("impala"), other, describe_env(other))
