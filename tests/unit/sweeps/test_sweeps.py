"""Sweeps without training: what is tried, what goes on after a kill, what fails, what is reported."""

from __future__ import annotations

import errno
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.arguments.config_files import load
from shoal.checkpoints import own_files
from shoal.cli.commands.sweep import headline
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.sweeps import processes, report, running, search, sweep
from shoal.sweeps.log import SweepLog
from shoal.sweeps.report import explained
from shoal.sweeps.search import make_search
from shoal.sweeps.spec import Range, grid, read_sweep

LISTS = {"learning_rate": [1e-4, 1e-3], "unroll": [5, 10, 20]}
DRAW = report._draw
RANGES = {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}, "unroll": {"low": 5, "high": 20}}


def described(tmp_path: Path, parameters: Mapping[str, Any] = LISTS, **settings: Any) -> dict[str, Any]:
    table = {"parameters": dict(parameters), "folder": str(tmp_path / "sweep"), "parallel": 2, **settings}
    return {"algorithm": "impala", "env": "CartPole-v1", "stop_steps": 100, "sweep": table}


class Killed(BaseException):
    """What a SIGKILL of the sweep is in these tests: nothing of it is caught."""


class FakeRun:
    """A run that ends at the third look, with a return that follows from its parameters and seed."""

    begun: list[tuple[str, int]]
    ended: list[str]
    fail: dict[str, int]
    kill_after: int | None

    def __init__(self, options: Mapping[str, Any], seed: int, path: Path) -> None:
        self.options, self.seed, self.path, self.looks, self.asked = options, seed, path, 0, False
        self.log = path.with_suffix(".log")
        FakeRun.begun.append((path.name, seed))

    def code(self) -> int | None:
        self.looks += 1
        if self.asked:
            return 130
        if self.looks < 3:
            return None
        if FakeRun.fail.get(self.path.name, 0) > 0:
            FakeRun.fail[self.path.name] -= 1
            return 1
        if FakeRun.kill_after is not None and len(FakeRun.ended) >= FakeRun.kill_after:
            raise Killed
        self.path.mkdir(parents=True, exist_ok=True)
        value = -abs(np.log10(self.options["learning_rate"]) + 3.0) + self.seed
        record = {"algorithm": "impala", "config": {}, "env": "CartPole-v1", "life": 0}
        (self.path / "config.json").write_text(json.dumps(record))
        (self.path / "summary.json").write_text(json.dumps({"stopped_by": "steps", "eval_return": value}))
        FakeRun.ended.append(self.path.name)
        return 0

    def end(self) -> None:
        self.asked = True

    def wait(self, seconds: float) -> None:
        pass

    def why(self) -> str:
        return "the simulator fell over"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeRun]:
    monkeypatch.setattr(running, "RunProcess", FakeRun)
    monkeypatch.setattr(running, "TICK", 0.0)
    monkeypatch.setattr(report, "_draw", lambda *_: False)  # pictures take time
    FakeRun.begun, FakeRun.ended, FakeRun.fail, FakeRun.kill_after = [], [], {}, None
    return FakeRun


def test_a_grid_is_every_combination_with_every_seed(tmp_path: Path, fake: type[FakeRun]) -> None:
    found = sweep(described(tmp_path, seeds=2))
    assert len(fake.ended) == len(set(fake.ended)) == 12
    assert found.best_parameters is not None
    assert found.best_parameters["learning_rate"] == 1e-3
    assert found.best_value == pytest.approx(0.5)
    assert sorted(found.trials["trial"]) == list(range(6))
    assert found.trials["eval_return"] == sorted(found.trials["eval_return"], reverse=True)
    assert found.importance["learning_rate"] > 0.9 > found.importance["unroll"]


def test_a_sweep_that_is_killed_twice_goes_on_and_runs_nothing_twice_to_the_end(
    tmp_path: Path, fake: type[FakeRun]
) -> None:
    for after in (3, 8):
        fake.kill_after = after
        with pytest.raises(Killed):
            sweep(described(tmp_path, seeds=2))
        assert len(fake.ended) == after
    fake.kill_after = None
    found = sweep(described(tmp_path, seeds=2))
    assert len(fake.ended) == len(set(fake.ended)) == 12
    assert found.trials["state"] == ["done"] * 6
    began = len(fake.begun)
    assert sweep(described(tmp_path, seeds=2)).trials == found.trials
    assert len(fake.begun) == began, "what is done is not begun again"


def test_a_line_that_was_cut_short_by_a_kill_had_begun_nothing(tmp_path: Path, fake: type[FakeRun]) -> None:
    fake.kill_after = 1
    with pytest.raises(Killed):
        sweep(described(tmp_path))
    file = tmp_path / "sweep" / "trials.jsonl"
    file.write_text(file.read_text() + '{"trial": 5, "par')
    fake.kill_after = None
    assert sorted(sweep(described(tmp_path)).trials["trial"]) == list(range(6))
    assert sorted(sweep(described(tmp_path)).trials["trial"]) == list(range(6)), "nor is it in the way later"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trials.jsonl", "3\n"),
        ("trials.jsonl", "{}\n"),
        ("trials.jsonl", '{"trial": 0, "parameters": {"env": "evil:make"}}\n'),
        ("trials.jsonl", '{"trial": [0], "failed": "x", "seed": 0}\n'),
        ("trials.jsonl", '{"trial": 77, "pruned": true}\n'),
        ("trials.jsonl", "[" * 100_000 + "\n"),
        ("sweep.json", "[]"),
        ("sweep.json", "[" * 100_000),
    ],
)
def test_files_that_are_damaged_are_named(name: str, text: str, tmp_path: Path, fake: type[FakeRun]) -> None:
    sweep(described(tmp_path))
    (tmp_path / "sweep" / name).write_text(text)
    with pytest.raises(UserError, match=f"{name} is damaged: give another folder"):
        sweep(described(tmp_path))


def test_a_failure_stops_nothing_and_is_tried_again_as_often_as_asked(tmp_path: Path, fake: type[FakeRun]) -> None:
    fake.fail = {"t0000-s0": 1, "t0001-s0": 5}
    found = sweep(described(tmp_path, retries=1))
    states = dict(zip(found.trials["trial"], found.trials["state"]))
    assert states == {0: "done", 1: "failed", 2: "done", 3: "done", 4: "done", 5: "done"}
    assert found.trials["why"][-1] == "the simulator fell over"
    assert fake.fail["t0001-s0"] == 3, "begun twice: once, and one retry"
    began = len(fake.begun)
    sweep(described(tmp_path, retries=1))
    assert len(fake.begun) == began, "what has failed for good is not begun again"


def test_the_best_config_is_a_file_that_can_be_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_draw", DRAW)
    sweep(described(tmp_path))
    cfg, options = load(tmp_path / "sweep" / "best.toml", {})
    assert (cfg.learning_rate, options) == (1e-3, {"stop_steps": 100})
    assert (tmp_path / "sweep" / "results.csv").read_text().startswith("trial,learning_rate,unroll,eval_return,spread")
    assert (tmp_path / "sweep" / "importance.png").stat().st_size > 1000


def test_random_draws_follow_from_the_seed_and_lie_in_their_ranges(tmp_path: Path) -> None:
    one = read_sweep(described(tmp_path, RANGES, sampler="random", trials=50), {})
    drawn = [make_search(one).next(number) or {} for number in range(50)]
    assert drawn == [make_search(one).next(number) for number in range(50)]
    assert all(1e-5 <= each["learning_rate"] <= 1e-2 and 5 <= each["unroll"] <= 20 for each in drawn)
    assert all(isinstance(each["unroll"], int) for each in drawn)
    assert sum(each["learning_rate"] < 3.2e-4 for each in drawn) > 10, "evenly in the logarithm"
    assert len({each["learning_rate"] for each in drawn}) == 50
    assert make_search(one).next(50) is None


def test_optunas_sampler_finds_what_is_better_and_goes_on_after_a_kill(tmp_path: Path, fake: type[FakeRun]) -> None:
    pytest.importorskip("optuna")
    spec = described(tmp_path, {"learning_rate": RANGES["learning_rate"]}, sampler="tpe", trials=25, parallel=1)
    fake.kill_after = 15
    with pytest.raises(Killed):
        sweep(spec)
    fake.kill_after = None
    found = sweep(spec)
    assert len(fake.ended) == len(set(fake.ended)) == 25
    rates = [np.log10(rate) for _, rate in sorted(zip(found.trials["trial"], found.trials["learning_rate"]))]
    assert np.mean(np.abs(np.array(rates[15:]) + 3)) < np.mean(np.abs(np.array(rates[:10]) + 3))


def test_what_a_sampler_needs_more_is_told_before_the_first_trial(
    tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(search.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="The sampler cmaes needs a package more; run: pip install cmaes"):
        sweep(described(tmp_path, RANGES, sampler="cmaes", trials=3))
    assert not fake.begun


def test_a_pruner_ends_what_falls_behind(tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(running, "LOOK_EVERY", 0.0)
    late = 7  # trials that are worse from the beginning

    def rows(path: Path, kind: str) -> list[dict[str, Any]]:
        value = -100.0 if int(path.name[1:5]) >= late else 100.0
        return [{"eval_return": value}] * 3

    monkeypatch.setattr(running, "read_rows", rows)
    monkeypatch.setattr(Path, "is_file", lambda self: True if self.name == "metrics.jsonl" else Path.exists(self))
    parameters = {"learning_rate": RANGES["learning_rate"]}
    spec = described(tmp_path, parameters, sampler="random", pruner="median", trials=10, parallel=1)
    found = sweep(spec)
    states = dict(zip(found.trials["trial"], found.trials["state"]))
    assert [states[number] for number in range(10)] == ["done"] * 7 + ["pruned"] * 3
    rows_of_log = (tmp_path / "sweep" / "trials.jsonl").read_text().splitlines()
    assert len([row for row in rows_of_log if "pruned" in row]) == 3
    began = len(fake.begun)
    assert sweep(spec).trials == found.trials
    assert len(fake.begun) == began, "what was ended early is not begun again"


class Heard:
    """A search that remembers what it was told, over a list of rates."""

    def __init__(self, made: Any) -> None:
        self.told: list[tuple[int, float | None]] = []
        self.known: list[int] = []

    def again(self, number: int, parameters: Mapping[str, Any]) -> None:
        self.known.append(number)

    def next(self, number: int) -> dict[str, Any] | None:
        return {"learning_rate": 1e-3, "unroll": 5} if number < 3 else None

    def report(self, number: int, step: int, value: float) -> bool:
        return False

    def tell(self, number: int, value: float | None) -> None:
        self.told.append((number, value))


def test_a_sampler_hears_of_a_trial_once_when_all_its_seeds_are_done(
    tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Heard] = []
    monkeypatch.setattr(running, "make_search", lambda made: heard.append(Heard(made)) or heard[-1])
    fake.kill_after = 3
    with pytest.raises(Killed):
        sweep(described(tmp_path, seeds=2, parallel=1))
    assert heard[0].told == [(0, pytest.approx(0.5))]
    fake.kill_after = None
    sweep(described(tmp_path, seeds=2, parallel=1))
    assert heard[1].known == [0, 1], "what an earlier life has begun"
    assert sorted(heard[1].told) == [(number, pytest.approx(0.5)) for number in range(3)]


def test_a_pruner_hears_of_every_evaluation_once_and_in_order(
    tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[int, int, float]] = []

    class Reported(Heard):
        def report(self, number: int, step: int, value: float) -> bool:
            reports.append((number, step, value))
            return False

    there = [{"eval_return": value} for value in (3.0, None, 5.0, 7.0)]  # what was not a number is counted, too
    looks: dict[str, int] = {}

    def rows(path: Path, kind: str) -> list[dict[str, Any]]:
        looks[path.name] = looks.get(path.name, 1) + 1
        return there[: looks[path.name]]

    monkeypatch.setattr(running, "make_search", Reported)
    monkeypatch.setattr(running, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(running, "read_rows", rows)
    monkeypatch.setattr(Path, "is_file", lambda self: True if self.name == "metrics.jsonl" else Path.exists(self))
    sweep(described(tmp_path, pruner="median", parallel=1))
    assert [report for report in reports if report[0] == 1] == [(1, 1, 3.0), (1, 3, 5.0)]


def test_a_study_is_told_apart_what_was_pruned_and_what_has_failed(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    made = read_sweep(described(tmp_path, RANGES, sampler="random", pruner="median", trials=9), {})
    search: Any = make_search(made)
    for number in range(7):
        search.next(number)
        assert search.report(number, 1, 100.0 if number < 6 else -100.0) is (number == 6)
        search.tell(number, 100.0 if number < 5 else None)
    states = [trial.state.name for trial in search._study.trials]
    assert states == ["COMPLETE"] * 5 + ["FAIL", "PRUNED"]
    assert search.next(8) is not None
    assert search.next(9) is None


def test_a_trial_without_all_its_seeds_has_no_value_and_one_that_may_be_tried_again_is_open(tmp_path: Path) -> None:
    made = read_sweep(described(tmp_path, seeds=2, retries=1), {})
    log = SweepLog(made)
    made.folder.mkdir()
    log.open()
    trial = log.begin(0, {"learning_rate": 1e-3, "unroll": 5})
    trial.results[0] = {"eval_return": 5.0}
    assert report.value_of(made, trial) is None
    log.failed(trial, 1, "fell over")
    assert report.state_of(made, trial) == "open"
    log.failed(trial, 1, "fell over")
    assert report.state_of(made, trial) == "failed"
    trial.results[1] = {"eval_return": 7.0}
    assert report.value_of(made, trial) == 6.0


def test_when_a_sweep_is_ended_its_runs_are_ended_in_order(
    tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(fake, "end", lambda self: ended.append(f"end {self.path.name}"))
    monkeypatch.setattr(fake, "wait", lambda self, seconds: ended.append(f"wait {self.path.name}"))
    monkeypatch.setattr(running.Silent, "update", lambda self, runner: interrupts.pop()())
    interrupts = [lambda: None, lambda: int("Ctrl-C")]
    with pytest.raises(ValueError, match="Ctrl-C"):
        sweep(described(tmp_path))
    assert ended == ["end t0000-s0", "end t0001-s0", "wait t0000-s0", "wait t0001-s0"]


@pytest.mark.parametrize("full", ["trials.jsonl", ".results.csv"])
def test_a_full_disk_ends_a_sweep_with_a_sentence_and_the_same_call_goes_on(
    full: str, tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, replaced = Path.open, own_files.open_own

    def check(path: Path) -> None:
        if path.name.startswith(full):
            raise OSError(errno.ENOSPC, "No space left on device")

    def on_full_disk(self: Path, *arguments: Any, **options: Any) -> Any:
        if arguments != ("r",) and options.get("mode") != "r":
            check(self)
        return opened(self, *arguments, **options)

    def replaced_on_full_disk(path: Path, flags: int) -> int:
        check(path)
        return replaced(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", on_full_disk)
        patched.setattr(own_files, "open_own", replaced_on_full_disk)
        with pytest.raises(
            UserError, match=r"cannot go on \(No space left on device\): when that is put right, the same"
        ):
            sweep(described(tmp_path))
    assert not list((tmp_path / "sweep").glob(".*"))
    assert sweep(described(tmp_path)).best_value is not None
    assert len(FakeRun.ended) == 6


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/sweep cannot go on \(Not a directory\)"):
        sweep(described(tmp_path, folder=str(tmp_path / "file" / "sweep")))


def test_what_a_sweep_has_left_that_was_killed_in_its_first_write_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / ".sweep.json.123").touch()
    assert sweep(described(tmp_path)).best_value is not None


@pytest.mark.parametrize(("runtime", "cores", "expected"), [("inline", 8, 8), ("local", 8, 4), ("local", 1, 1)])
def test_as_many_runs_at_a_time_as_the_cores_can_carry(
    runtime: str, cores: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.os, "sched_getaffinity", lambda _: set(range(cores)))
    assert running._default_parallel(read_sweep(described(tmp_path) | {"runtime": runtime}, {})) == expected


@pytest.mark.parametrize(
    ("settings", "runs"),
    [({"seeds": 2}, 12), ({"trials": 4}, 4), ({"trials": 9}, 6), ({"sampler": "random", "trials": 9}, 9)],
)
def test_it_is_known_how_many_runs_there_will_be(settings: dict[str, Any], runs: int, tmp_path: Path) -> None:
    runner = running.Runner(read_sweep(described(tmp_path, **settings), {}), running.Silent())
    assert headline(runner) == f"0 of {runs} runs done, 0 running"


def test_what_an_earlier_life_had_only_made_room_for_is_removed_and_a_run_is_not(tmp_path: Path) -> None:
    for name in ("room", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for name in ("room", "run", "nothing"):
        processes._make_free(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("Traceback\nshoal: --env is wrong.\n  (see above)\n", "--env is wrong."),
        ("first\nlast words\n\n", "last words"),
        ("", "it said nothing"),
    ],
)
def test_why_a_run_failed_is_what_shoal_said_or_else_its_last_words(log: str, why: str, tmp_path: Path) -> None:
    made = object.__new__(processes.RunProcess)
    made.log = tmp_path / "run.log"
    made.log.write_text(log)
    assert made.why() == why


def test_a_grid_of_steps() -> None:
    assert grid({"a": Range(1, 7, step=3, whole=True), "b": Range(0.1, 0.3, step=0.1)}) == [
        {"a": a, "b": b} for a in (1, 4, 7) for b in (0.1, 0.2, 0.3)
    ]


def test_what_a_parameter_explains_is_corrected_for_chance() -> None:
    values = np.array([1.0, 1.1, 5.0, 5.1])
    assert explained(values, [0, 0, 1, 1]) > 0.95
    assert explained(np.array([1.0, 2.0, 3.0, 4.0]), [0, 0, 1, 1]) == pytest.approx((5.0 - 1.0 - 0.5) / (5.0 + 0.5))
    assert explained(values, [0, 1, 0, 1]) == 0.0
    assert explained(values, [0, 1, 2, 3]) == 0.0, "a group for each value says nothing"


def test_many_values_of_a_range_are_put_into_four_bins_of_equal_count_and_few_stand_for_themselves() -> None:
    assert report._groups([80, 10, 30, 20, 40, 50, 60, 70]) == [3, 0, 1, 0, 1, 2, 2, 3]
    assert report._groups([0.1, 0.2, 0.1, 0.4]) == [0, 1, 0, 2]
    assert report._groups([1, 1, 1, 2, 3, 4]) == [0, 0, 0, 1, 2, 3]  # as many values as bins
    assert report._groups(["a", "b", "c", "d", "e"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parameters": {}}, "has no [sweep.parameters]"),
        ({"parameters": {"learning_rte": [1]}}, "there is no option learning_rte. Did you mean learning_rate?"),
        ({"parameters": {"unroll": [5, "x"]}}, 'unroll = "x" is no such value: give a whole number.'),
        ({"parameters": {"unroll": 5}}, "the parameter unroll must be a list of values"),
        ({"parameters": {"unroll": {"low": 9, "high": 3}}}, "with low below high"),
        ({"parameters": {"gamma": {"low": 0, "high": 1, "log": True}}}, "log = true (above 0)"),
        ({"parameters": {"gamma": {"low": 0.1, "high": 1}}}, "a grid needs values of gamma"),
        ({"parameters": {"gamma": {"low": 0.1, "high": math.inf, "step": 1}}}, "the parameter gamma must be a list"),
        ({"parameters": {"gamma": {"low": 0.1, "high": 0.2, "step": 1e-300}}}, "this grid has 1e+299 combinations"),
        ({"parameters": {"gamma": [0.9, -1.0]}}, "--gamma -1.0 is out of range: give a number from 0 to 1."),
        ({"parameters": {"learning_rate": [1e-3, math.nan]}}, "--learning-rate nan is not a finite number"),
        ({"parameters": {"seed": [1, 2]}}, "seed cannot be set here: give seeds in [sweep]."),
        ({"parameters": {"env": ["CartPole-v1"]}}, "env is given for all runs and among [sweep.parameters]"),
        ({"sampler": "tpe"}, "the sampler tpe needs trials = N"),
        ({"sampler": "bayes"}, "sampler 'bayes' is not known: choose one of grid, random, tpe"),
        ({"pruner": "medium"}, "pruner 'medium' is not known: choose one of none, median, halving, hyperband. Did"),
        ({"metric": "reward"}, "metric 'reward' is not known"),
        ({"direction": "up"}, "direction 'up' is not known"),
        ({"seeds": 0}, "seeds must be their number"),
        ({"seeds": [1, 1]}, "seeds must be their number"),
        ({"trials": 0}, "trials 0 is too small"),
        ({"retries": -1}, "retries -1 is too small"),
        ({"tral": 3}, "[sweep] has no tral. Did you mean trials?"),
    ],
)
def test_mistakes_in_a_sweep_are_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        read_sweep(described(tmp_path) | {"sweep": described(tmp_path)["sweep"] | change}, {})
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_a_folder_of_another_sweep_or_with_other_files_is_refused(tmp_path: Path) -> None:
    sweep(described(tmp_path))
    with pytest.raises(UserError, match="was begun with another parameters"):
        sweep(described(tmp_path, {"unroll": [5]}))
    with pytest.raises(UserError, match="was begun with another seeds"):
        sweep(described(tmp_path, seeds=3))
    with pytest.raises(UserError, match="was begun with another metric"):
        sweep(described(tmp_path, metric="env_steps"))
    with pytest.raises(UserError, match="was begun with another sampler_seed"):
        sweep(described(tmp_path, sampler_seed=1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        sweep(described(tmp_path), folder=str(tmp_path / "full"))


def test_seconds_are_minimized_and_a_run_without_a_number_is_no_result(tmp_path: Path) -> None:
    made = read_sweep(described(tmp_path, metric="seconds_to_target"), {})
    assert not made.maximize
    log = SweepLog(made)
    made.folder.mkdir()
    log.open()
    for number, seconds in enumerate((3.0, None, 2.0)):
        trial = log.begin(number, {"learning_rate": 1e-3, "unroll": 5})
        trial.results[0] = {"seconds_to_target": seconds}
    best = report.best_trial(made, log)
    assert best is not None
    assert best.number == 2
    assert report.state_of(made, log.trials[1]) == "done, without a number"
    assert report.results(made, log)["trial"] == [2, 0, 1], "the best first"
    assert "–" in "\n".join(report.lines(report.results(made, log)))


def test_the_file_of_the_docs_is_a_sweep(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()
    text = page.split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(text)
    (tmp_path / "sweep.toml").write_text(text)
    assert read_sweep(tmp_path / "sweep.toml", {}).folder == Path("sweeps/sweep")


def test_the_command_sweeps_as_was_typed_and_its_exit_code_says_whether_there_is_a_best(
    tmp_path: Path, fake: type[FakeRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    class Noted(running.Runner):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append((self.parallel, self.sweep.folder.name, self.sweep.settings.trials))

    monkeypatch.setattr(running, "Runner", Noted)
    file = tmp_path / "file.toml"
    table = "[sweep]\nparallel = 2\n[sweep.parameters]\nlearning_rate = [1e-4, 1e-3, 1e-2]\n"
    file.write_text('algorithm = "impala"\nenv = "CartPole-v1"\nstop_steps = 100\n' + table)
    typed = ["--parallel", "3", "--trials", "2", "--json"]
    assert main(["sweep", str(file), "--folder", str(tmp_path / "good"), *typed]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["best_parameters"], found["best_value"]) == ({"learning_rate": 1e-3}, 0.0)
    fake.fail = {f"t000{number}-s0": 9 for number in range(2)}
    assert main(["sweep", str(file), "--folder", str(tmp_path / "bad"), *typed]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["best_parameters"] is None
    assert made == [(3, "good", 2), (3, "bad", 2)]
