"""Stop rules and exit codes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import UserError
from shoal.experiment import view
from shoal.experiment.progress import Progress
from shoal.experiment.watching import stop_reason
from shoal.runs.options import Result, RunOptions, StoppedBy

RESULT = Result(
    algorithm="impala",
    env="CartPole-v1",
    runtime="local",
    seed=0,
    env_steps=10,
    learner_steps=1,
    env_steps_per_second=0.0,
    wall_seconds=0.0,
    train_seconds=0.0,
    eval_return=None,
    eval_version=None,
    saved_version=None,
    reached=False,
    seconds_to_target=None,
    restarts=0,
    run_dir="run",
    stopped_by="updates",
    preset="none",
    trained_steps=0,
    refused_updates=0,
    first_update_seconds=None,
    target=None,
    bottleneck="",
)


def test_without_a_stop_the_environments_own_threshold_is_used() -> None:
    assert RunOptions().with_threshold(475.0).stop_return == 475.0
    assert RunOptions().with_threshold(None) == RunOptions()


@pytest.mark.parametrize("given", [RunOptions(stop_steps=5), RunOptions(stop_seconds=1.0), RunOptions(stop_return=3.0)])
def test_a_given_stop_is_left_alone(given: RunOptions) -> None:
    assert given.with_threshold(475.0) == given


def test_a_return_of_zero_is_a_stop_as_any_other() -> None:
    assert RunOptions(stop_return=0.0).with_threshold(475.0).stop_return == 0.0
    assert RunOptions(stop_return=0.0).stop_line() == "stops at return 0"


def test_the_stop_line_names_every_rule() -> None:
    assert RunOptions(stop_return=475.0, stop_seconds=60).stop_line() == "stops at return 475 or seconds 60"
    assert RunOptions(stop_steps=2_000_000).stop_line() == "stops at steps 2,000,000"
    assert RunOptions().stop_line() == "runs until Ctrl-C"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (RunOptions(stop_updates=0), "--stop-updates 0"),
        (RunOptions(seed=-1), "--seed -1"),
        (RunOptions(eval_episodes=0), "--eval-episodes 0"),
        (RunOptions(ray_address="auto"), "--ray-address needs the ray runtime"),
        (RunOptions(runtime="rya"), "--runtime rya is not known: choose one of local, inline, ray. Did you mean ray?"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_option_is_refused(options: RunOptions, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        options.check()


@pytest.mark.parametrize(
    ("stopped_by", "target", "reached", "code"),
    [
        ("return", 475.0, True, 0),
        ("steps", None, False, 0),
        ("updates", None, False, 0),
        ("seconds", None, False, 0),
        ("seconds", 475.0, False, 3),
        ("interrupt", 475.0, False, 130),
        ("failure", None, False, 1),
    ],
)
def test_the_exit_code_says_how_a_run_ended(
    stopped_by: StoppedBy, target: float | None, reached: bool, code: int
) -> None:
    assert replace(RESULT, stopped_by=stopped_by, target=target, reached=reached).exit_code == code


@pytest.mark.parametrize("stopped_by", ["steps", "updates", "seconds"])
def test_a_run_in_which_nothing_happened_is_no_success(stopped_by: StoppedBy) -> None:
    assert replace(RESULT, stopped_by=stopped_by, env_steps=0, learner_steps=0).exit_code == 1
    assert replace(RESULT, stopped_by="seconds", learner_steps=0).exit_code == 3


def progress(steps: int = 0, trained: float = 0.0, confirmed: bool = False, elapsed: float = 0.0) -> Progress:
    record = {"eval_return": 500.0, "reached": True} if confirmed else None
    return Progress(
        train_seconds=trained, elapsed=elapsed or trained + 40.0, counts={"env_steps": steps}, confirmed=record
    )


def test_any_rule_that_is_met_ends_the_run_and_the_return_counts_first() -> None:
    options = RunOptions(stop_return=475.0, stop_steps=100, stop_seconds=10.0)
    assert stop_reason(options, progress(99, 9.9), False, False) is None
    assert stop_reason(options, progress(100, 9.9), False, False) == "steps"
    assert stop_reason(options, progress(99, 10.0), False, False) == "seconds"
    assert stop_reason(options, progress(99, 9.9), True, False) == "updates"
    assert stop_reason(options, progress(100, 10.0, confirmed=True), True, False) == "return"
    assert stop_reason(options, progress(100, 10.0, confirmed=True), True, True) == "interrupt"


def test_the_start_is_not_counted_as_training_unless_it_never_ends() -> None:
    options = RunOptions(stop_seconds=10.0)
    assert stop_reason(options, progress(0, 0.0, elapsed=69.9), False, False) is None
    assert stop_reason(options, progress(0, 0.0, elapsed=70.0), False, False) == "seconds"


def test_a_run_in_which_nothing_happened_has_failed_unless_it_was_interrupted() -> None:
    assert replace(RESULT, env_steps=0, learner_steps=0).exit_code == 1
    assert replace(RESULT, env_steps=0, stopped_by="interrupt").exit_code == 130


def test_advice_stands_at_the_end_of_a_run_where_there_is_any() -> None:
    assert not [line for line in view.summary(RESULT) if line.startswith("for more speed")]
    advised = replace(RESULT, advice="--actors 2 (now 1): cores are idle")
    assert "for more speed: --actors 2 (now 1): cores are idle" in view.summary(advised)
