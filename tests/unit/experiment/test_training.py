"""What the driver does around a run: causes of failures, what is refused before it starts."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from shoal.algorithms import apex_dqn, impala, ppo
from shoal.analysis import plots
from shoal.checkpoints import RunLock
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.experiment.ending import Final
from shoal.experiment.environments import describe_env
from shoal.experiment.experiment import Experiment, RunningExperiment
from shoal.experiment.listeners import Callbacks
from shoal.experiment.training import _finish, go_on, train
from shoal.experiment.watching import LATE, metrics_of, take_snapshot, user_error
from shoal.loops.wiring import Settings
from shoal.program import NodeDied
from shoal.runs.directory import RunDirectory
from shoal.runs.options import RunOptions
from shoal.runtime import RunFailed, launch
from shoal.versions import make_version


class FakeRun:
    """A run whose metrics are gone: the supervisor finds out why."""

    def __init__(self) -> None:
        self.waited = 0.0

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        raise RunFailed("learner", "node 'learner' was killed by SIGKILL")


class Answers:
    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.__dict__.update(answers)


def test_when_the_metrics_are_gone_the_supervisor_names_the_cause() -> None:
    def dead(evaluations_from: int) -> None:
        raise NodeDied("metrics")

    run = FakeRun()
    with pytest.raises(RunFailed, match="'learner' was killed"):
        take_snapshot(cast(Any, run), Answers(snapshot=dead), 0)
    assert run.waited == LATE


def test_metrics_that_are_on_their_way_back_are_waited_for_and_end_nothing() -> None:
    def dead(evaluations_from: int) -> None:
        raise NodeDied("metrics")

    waited: list[float] = []
    assert take_snapshot(cast(Any, Answers(wait=waited.append)), Answers(snapshot=dead), 0) is None
    assert waited == [LATE]


def test_what_the_user_got_wrong_is_told_as_such_even_from_inside_a_node() -> None:
    assert user_error(RunFailed("learner", "raised …", "Traceback: …", user_error="Give more.")) == "Give more."
    assert user_error(RunFailed("learner", "raised …", "Traceback:\nValueError: no")) is None
    assert user_error(RunFailed("learner", "was killed by SIGKILL")) is None


def test_a_replay_that_cannot_fit_into_memory_is_refused_with_a_capacity_that_fits(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(env="CartPole-v1", capacity=10**15)
    with pytest.raises(UserError, match=r"--capacity 10+ needs 16,000,000 GB .* give --capacity \d+ or less"):
        train(cfg, quiet=True, stop_updates=1, run_dir=str(tmp_path / "run"))


def experiment() -> Experiment:
    cfg = impala.Config(env="CartPole-v1")
    return Experiment("impala", cast(Any, impala), cfg, describe_env(cfg), RunOptions(stop_return=100.0), 0.0)


def test_what_is_told_of_a_run_that_reached_its_goal_is_the_confirmed_evaluation(tmp_path: Path) -> None:
    made = RunningExperiment(
        experiment(), cast(Any, SimpleNamespace(path=tmp_path)), cast(Any, SimpleNamespace(note=print))
    )
    made.progress.confirmed = {"eval_return": 104.0, "version": 5, "seconds": 2.0, "reached": True}
    made.progress.evaluation = {"eval_return": 7.0, "version": 6, "seconds": 3.0, "reached": False}
    made.supervisor.restarts.update({"actor/0": 2, "actor/1": 1})
    final = Final(make_version(3, 5), {"w": np.zeros(1)})
    result = made._result("return", final)
    assert result.restarts == 3
    assert (result.eval_return, result.eval_version, result.saved_version) == (104.0, 5, 5)
    assert (result.reached, result.seconds_to_target, result.exit_code) == (True, 2.0, 1)  # no step was made


def test_weights_that_cannot_be_saved_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: RunDirectory, weights: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_weights", full)
    small = ("--envs-per-actor", "4", "--batch", "4", "--queue", "8", "--unroll", "5", "--runtime", "inline")
    code = main(["train", "impala", *small, "--stop-updates", "1", "--run-dir", str(tmp_path / "run")])
    assert code == 1
    told = capsys.readouterr()
    assert f"shoal: the final weights could not be saved in {tmp_path / 'run'}: No space left on device\n" in told.err
    assert "play it again" not in told.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["saved_version"] is None
    assert summary["error"] == f"the final weights could not be saved in {tmp_path / 'run'}: No space left on device"
    with RunLock(tmp_path / "run"):
        pass  # nobody has kept it


def test_weights_of_an_earlier_life_stay_known_where_newer_ones_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RunDirectory, weights: Any) -> None:
        raise OSError(28, "No space left on device")

    small = ("--envs-per-actor", "4", "--batch", "4", "--queue", "8", "--unroll", "5", "--runtime", "inline")
    assert main(["train", "impala", *small, "--stop-updates", "3", "--run-dir", str(tmp_path / "run")]) == 0
    monkeypatch.setattr(RunDirectory, "write_weights", full)
    assert main(["resume", str(tmp_path / "run"), "--stop-updates", "5"]) == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["learner_steps"], summary["saved_version"]) == (5, 3)


def test_what_is_shown_while_a_run_goes_on_keeps_up_on_a_virtual_clock_too() -> None:
    cfg = impala.Config(envs_per_actor=4, batch=4, queue=8, unroll=5, hidden=(8,))
    with launch(impala.program(cfg, describe_env(cfg), Settings(evaluate=False)), "inline") as run:
        run.wait(0.2)  # a turn takes a thousandth of a second: the learner has had about a hundred
        counts = metrics_of(run).snapshot()["counts"]
    assert counts["learner_steps"] >= 60
    assert counts["env_steps"] >= 60 * 4 * 5


def test_what_a_program_refuses_is_said_before_the_run_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "a3c", "--synchronous", "--reduce", "2", "--run-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "shoal: --synchronous makes each step of one gradient per worker: leave out --reduce."
    ]
    assert not (tmp_path / "run").exists()


class Licensed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Finds out after so many steps that the user has forgotten something."""

    def __init__(self, after: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.left = after

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise UserError("The licence has run out: renew it.")
        return super().step(action)


@pytest.mark.parametrize(("after", "kept"), [(2, False), (200, True)])
def test_a_mistake_that_shows_late_does_not_cost_what_was_learned(after: int, kept: bool, tmp_path: Path) -> None:
    small: dict[str, Any] = {"envs_per_actor": 2, "batch": 2, "queue": 4, "unroll": 4, "hidden": (4,)}
    with pytest.raises(UserError, match=r"^The licence has run out: renew it\.$"):
        train(
            impala.Config(env=lambda: Licensed(after), preset="none", **small),
            quiet=True,
            runtime="inline",
            eval_every=1e6,
            stop_updates=1000,
            run_dir=str(tmp_path / "run"),
        )
    files = {file.name for file in tmp_path.glob("run/*")}
    assert files >= {"config.json", "metrics.jsonl", "summary.json", "weights.npz"} if kept else not files


def test_a_signal_while_files_are_written_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "write_curve", lambda path: os.kill(os.getpid(), signal.SIGINT))
    small: dict[str, Any] = {"envs_per_actor": 2, "batch": 2, "queue": 4, "unroll": 4, "hidden": (4,)}
    cfg = impala.Config(env="CartPole-v1", preset="none", **small)
    result = train(cfg, quiet=True, runtime="inline", stop_updates=1, run_dir=str(tmp_path / "run"))
    assert (result.stopped_by, result.learner_steps) == ("updates", 1)


def test_a_failure_is_told_before_what_was_learned_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Fails(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            made.append(1)
            if len(made) > 20:
                raise ValueError("no more")
            return super().step(action)

    made: list[int] = []
    lock = threading.Lock()  # cannot be pickled: it is tried in this process
    with pytest.raises(RunFailed, match="no more"):
        train(
            impala.Config(env=lambda: (lock, Fails(gymnasium.make("CartPole-v1")))[1], preset="none"),
            runtime="inline",
            max_failures=0,
            run_dir=str(tmp_path / "run"),
        )
    assert "4 times in a row, 1 times in a row; giving up; the run ends, and what it has" in capsys.readouterr().err


def test_in_python_an_interrupt_is_raised_when_the_run_has_ended_and_so_is_what_broke_it() -> None:
    def finish(stopped_by: str, failure: Exception | None = None) -> Any:
        result = SimpleNamespace(stopped_by=stopped_by)
        return _finish(cast(Any, SimpleNamespace(run=lambda display: (result, failure))), True, Callbacks())

    assert finish("steps").stopped_by == "steps"
    with pytest.raises(KeyboardInterrupt):
        finish("interrupt")
    with pytest.raises(RunFailed, match="the learner is gone"):
        finish("failure", RunFailed("learner", "the learner is gone"))


def test_a_run_that_cannot_go_on_after_all_lets_go_of_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cfg: Any) -> Any:
        raise UserError("there is no such environment any more")

    monkeypatch.setattr("shoal.experiment.training.describe_task", refuse)
    lock = RunLock(tmp_path)
    lock.acquire()
    plan: Any = SimpleNamespace(cfg=None, resumed=SimpleNamespace(lock=lock))
    monkeypatch.setattr("shoal.experiment.training.plan", lambda *given, **trusted: plan)
    with pytest.raises(UserError, match="no such environment"):
        go_on(tmp_path, {}, {}, 0.0)
    with RunLock(tmp_path):
        pass


# ---- resume="auto"


def asked_for(run: Path, **options: Any) -> Any:
    small: dict[str, Any] = {"envs_per_actor": 2, "batch": 2, "queue": 4, "unroll": 4, "hidden": (4,), "preset": "none"}
    cfg = impala.Config(env="CartPole-v1", **small)
    return train(cfg, quiet=True, runtime="inline", run_dir=str(run), resume="auto", **options)


def test_resume_auto_begins_goes_on_and_tells_what_has_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = asked_for(run, stop_updates=150, on_progress=lambda told: True)
    assert first.stopped_by == "callback"
    second = asked_for(run, stop_updates=150)
    assert (second.stopped_by, second.learner_steps) == ("updates", 150)
    assert second.env_steps > first.env_steps, "it went on"
    assert json.loads((run / "config.json").read_text())["life"] == 1
    before = (run / "metrics.jsonl").read_bytes()
    third = asked_for(run, stop_updates=150)
    assert third == second
    assert (run / "metrics.jsonl").read_bytes() == before


def test_resume_auto_goes_on_with_a_run_that_has_ended_when_it_is_asked_for_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert asked_for(run, stop_updates=2).learner_steps == 2
    assert asked_for(run, stop_updates=5).learner_steps == 5


def test_resume_auto_needs_to_know_which_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume auto needs --run-dir"):
        train(impala.Config(env="CartPole-v1"), resume="auto")
    asked_for(tmp_path / "run", stop_updates=1)
    with pytest.raises(UserError, match="is a run of impala, not of ppo"):
        train(ppo.Config(env="CartPole-v1"), resume="auto", run_dir=str(tmp_path / "run"), stop_updates=1)
