"""One run as its driver sees it: what it begins with, what it looks at and writes down, why and how it ends."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.saved_runs import saved_run

from shoal import __version__
from shoal.algorithms import apex_dqn, impala
from shoal.checkpoints import Checkpoint, RunLock
from shoal.experiment import experiment as driver
from shoal.experiment import view
from shoal.experiment.environments import describe_env
from shoal.experiment.experiment import ROW_EVERY, WITHOUT_UPDATE, Experiment, RunningExperiment
from shoal.experiment.progress import Progress
from shoal.experiment.resuming import Resumed
from shoal.experiment.training import train
from shoal.experiment.watching import LATE, START, Waited, stop_reason, take_snapshot
from shoal.loops.filming import FilmPlan
from shoal.loops.wiring import Settings
from shoal.program import node_seed
from shoal.runs.directory import FILMS, RunDirectory
from shoal.runs.options import RunOptions
from shoal.runtime import Supervisor
from shoal.services.metrics import Metrics
from shoal.versions import make_version

CFG = impala.Config(env="CartPole-v1", envs_per_actor=2, batch=2, queue=4, unroll=4, hidden=(8,), preset="none")


def made(options: RunOptions | None = None, resumed: Resumed | None = None) -> Experiment:
    chosen = options or RunOptions(stop_return=100.0)
    return Experiment("impala", cast(Any, impala), CFG, describe_env(CFG), chosen, 10.0, resumed)


def running(experiment: Experiment | None = None, directory: Any = None, display: Any = None) -> RunningExperiment:
    return RunningExperiment(experiment or made(), directory or Rows(), display or Display())


def resumed(path: Path, life: int = 2, notes: tuple[str, ...] = (), **meta: Any) -> Resumed:
    known = {"evaluations": 4, "evaluation": {"eval_return": 7.0}, "best": 9.0, **meta}
    checkpoint = Checkpoint(path / "checkpoints" / "000001", known, ("metrics",))
    return Resumed(path, RunLock(path), life, checkpoint, known, {"metrics": {"notes": list(notes)}})


class Display:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.note = self.notes.append

    def update(self, progress: Progress) -> None: ...


class Rows:
    """A run directory that remembers what was written."""

    path = Path("run")

    def __init__(self) -> None:
        self.rows: list[tuple[str, Any]] = []
        self.ended = ""
        self.listener: Any = None

    def write_row(self, kind: str, row: Any) -> None:
        self.rows.append((kind, row))

    def offset(self) -> int:
        return 123

    def discard(self) -> None:
        self.ended = "discarded"

    def close(self) -> None:
        self.ended = "closed"


# ---- what it begins with


def test_the_program_is_told_what_the_user_asked_for(tmp_path: Path) -> None:
    asked = RunOptions(stop_return=5.0, stop_updates=6, stop_steps=7, eval_episodes=8, eval_every=9.0, freeze="torso")
    expected = Settings(target=5.0, max_updates=6, max_steps=7, eval_episodes=8, eval_every=9.0, frozen="torso")
    assert made(asked).settings(tmp_path) == expected
    filmed = dataclasses.replace(asked, record_every=30.0, record_format="gif")
    plan = FilmPlan(30.0, str((tmp_path / FILMS).resolve()), "gif")
    assert made(filmed).settings(tmp_path) == dataclasses.replace(expected, films=plan)


def test_every_life_has_random_numbers_of_its_own(tmp_path: Path) -> None:
    options = RunOptions(stop_steps=1, seed=3)
    assert made(options).seed() == 3
    lives = [made(options, resumed(tmp_path, life)).seed() for life in (1, 2)]
    assert lives == [node_seed(3, "life", 1), node_seed(3, "life", 2)]
    assert len({3, *lives}) == 3


def test_old_weights_are_for_a_run_that_has_none_of_its_own(tmp_path: Path) -> None:
    old = saved_run(tmp_path / "old", "impala")
    options = RunOptions(stop_steps=1, restore=str(old))
    begins_again = Resumed(tmp_path, RunLock(tmp_path), 1, None)  # killed before its first checkpoint
    assert made(options).restored is not None
    assert made(options, begins_again).restored is not None
    assert made(options, resumed(tmp_path)).restored is None


def test_a_run_that_goes_on_cuts_its_metrics_back_and_keeps_its_lock(tmp_path: Path) -> None:
    first = RunDirectory.create(str(tmp_path), "impala", "CartPole-v1", 0, print)
    first.write_row("progress", {"seconds": 1.0})
    goes_on = resumed(tmp_path, metrics_bytes=first.offset())
    first.write_row("progress", {"seconds": 2.0})
    first.close()
    directory, lock = made(resumed=goes_on)._open(cast(Any, Display()))
    directory.go_on()  # when its nodes have started
    directory.close()
    assert [json.loads(line)["seconds"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1.0]
    assert lock is goes_on.lock


def test_what_did_not_start_leaves_nothing_and_what_goes_on_leaves_what_it_had(tmp_path: Path) -> None:
    for experiment, ended in ((made(), "discarded"), (made(resumed=resumed(tmp_path)), "closed")):
        directory = Rows()
        running(experiment, directory)._discard()
        assert directory.ended == ended


def test_the_log_of_a_run_that_goes_on_begins_at_the_steps_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(driver, "Sinks", lambda names, path, record, step, note: begun.append(step))
    running()._listen()
    running(made(resumed=resumed(tmp_path, env_steps=900)))._listen()
    assert begun == [0, 900]


# ---- while it runs


class Watched:
    """A run of which only the metrics are asked for; time passes where the driver waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, metrics: Any = None, tick: float = 0.25) -> None:
        self.metrics, self.now, self.tick_seconds = metrics or Metrics(), 50.0, tick
        self.supervisor, self.program = Supervisor(), impala.program(CFG, describe_env(CFG), Settings())
        self.ticks: list[tuple[float, int]] = []
        self.stop_at = 1e9
        self.stop = False
        monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: self.now))

    def client(self, handle: Any) -> Any:
        return self.metrics if handle.name == "metrics" else SimpleNamespace(info=dict)

    def finished(self, handle: Any) -> bool:
        return self.now >= 50.0 + self.stop_at

    def tick(self, now: float, updates: int, best: float | None, describe: Any) -> None:
        self.ticks.append((now, updates))

    def wait(self, seconds: float, best: float | None, describe: Any) -> None:
        self.now += self.tick_seconds

    def machines(self) -> dict[str, str]:
        return {}

    def newest(self) -> None: ...

    def checkpoint(self, newest: Any, updates: int) -> None: ...

    def watch(self, experiment: Experiment, directory: Rows) -> str:
        given: Any = self
        life = running(experiment, directory)
        life.reviving = cast(Any, SimpleNamespace(read=lambda *told: self.read.append(told)))
        self.read: list[Any] = []
        life.run = life.checkpointer = life.listeners = given
        life.progress.evaluations = 0  # of which the metrics have not told before
        return life._watch()


def test_a_row_of_metrics_is_written_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    run, directory = Watched(monkeypatch), Rows()
    run.metrics.report("actor/0", {"env_steps": 3}, {}, {})
    run.stop_at = 3.0
    assert run.watch(made(), directory) == "updates"
    assert ROW_EVERY == 1.0
    assert [kind for kind, _ in directory.rows] == ["progress"] * 4
    assert len(run.ticks) == 13


def test_no_row_is_written_before_there_is_something_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    run, directory = Watched(monkeypatch), Rows()
    run.stop_at = 3.0
    run.watch(made(), directory)
    assert directory.rows == []


@pytest.mark.parametrize(("runtime", "expected"), [("local", 0.5), ("inline", 70.0)])
def test_checkpoints_go_by_the_clock_of_the_nodes(
    runtime: Any, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Metrics().snapshot() | {"train_seconds": 70.0, "counts": {"learner_steps": 6.0, "env_steps": 9.0}}
    run = Watched(monkeypatch, SimpleNamespace(snapshot=lambda evaluations_from: snapshot), tick=0.5)
    run.stop_at = 0.5
    run.watch(made(RunOptions(runtime=runtime, stop_updates=8)), Rows())
    assert run.ticks[-1] == (expected, 6)


def test_a_callback_that_asks_for_it_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch)
    run.stop, run.stop_at = True, 1.0
    assert run.watch(made(), Rows()) == "callback"
    assert len(run.ticks) == 1


def test_a_note_is_told_once_and_what_was_read_is_kept_for_the_next_life_of_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, directory = Watched(monkeypatch), Rows()
    for text in ("old", "older", "new"):
        run.metrics.note(text)
    run.metrics.evaluation({"eval_return": 1.0, "reached": False, "spread": 0.0})
    run.stop_at = 0.5
    experiment = made(resumed=resumed(tmp_path, notes=("old", "older")))
    run.watch(experiment, directory)
    assert [row["text"] for kind, row in directory.rows if kind == "note"] == ["new"]
    assert [(told[0]["notes"], told[1]) for told in run.read] == [(["old", "older", "new"], 1)] * 3


def test_what_breaks_because_the_user_has_ended_everything_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    life, error = running(), RuntimeError("lost")
    for raised, asked, expected in (
        (error, False, ("failure", error)),
        (error, True, ("interrupt", None)),
        (KeyboardInterrupt(), False, ("interrupt", None)),
    ):

        def watch(*_: object, raised: BaseException = raised) -> Any:
            raise raised

        monkeypatch.setattr(life, "_watch", watch)
        life.interrupts = cast(Any, SimpleNamespace(asked=asked))
        assert life._until_stopped() == expected


def test_why_nothing_is_learned_is_shown_and_said_once_and_only_where_nothing_is() -> None:
    waited: Any = SimpleNamespace(told=lambda: "150 of 200 sequences")
    display = Display()
    life = running(display=display)
    progress = life.progress
    progress.counts, progress.train_seconds = {"env_steps": 1400.0}, WITHOUT_UPDATE - 0.1
    life._see_what_is_waited_for(waited)
    assert display.notes == []
    assert "1,400 steps · 0 steps/s · waiting for data: 150 of 200 sequences" in view.line(progress)
    assert progress.bottleneck() == "learning has not begun: 150 of 200 sequences are there"
    progress.train_seconds = WITHOUT_UPDATE
    for _ in range(2):
        life._see_what_is_waited_for(waited)
    assert display.notes == ["no update after 30 s and 1,400 steps: 150 of 200 sequences are there"]
    progress.counts["learner_steps"] = 1.0
    life._see_what_is_waited_for(waited)
    assert "updates/s" in view.line(progress)
    assert progress.bottleneck() == "none seen: the run was too short"


def test_what_is_waited_for_is_asked_of_the_tables() -> None:
    tables = {
        "full": {"size": 9, "needed": 2, "sample_waiting": 0},
        "rollouts": {"size": 1200, "needed": 3400, "sample_waiting": 1},
    }
    info = SimpleNamespace(done=lambda: True, result=lambda: tables)
    run: Any = SimpleNamespace(
        program=impala.program(CFG, describe_env(CFG), Settings()),
        client=lambda handle: SimpleNamespace(future=SimpleNamespace(info=lambda: info)),
    )
    assert Waited(run).told() == "1,200 of 3,400 rollouts"
    tables["rollouts"]["sample_waiting"] = 0
    assert Waited(run).told() is None


def test_a_run_that_ends_before_it_learns_says_what_is_missing(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(env="CartPole-v1", envs_per_actor=2, learning_starts=5_000, preset="none", hidden=(8,))
    result = train(cfg, runtime="inline", stop_steps=400, run_dir=str(tmp_path / "run"), quiet=True)
    assert re.fullmatch(r"learning has not begun: \d+ of 5,000 transitions are there", result.bottleneck)


def test_a_checkpoint_says_where_the_run_was() -> None:
    life = running()
    progress = life.progress
    progress.counts, progress.seconds, progress.evaluations = {"env_steps": 40.0}, 2.5, 3
    progress.evaluation, progress.best = {"eval_return": 1.0}, 8.0
    assert life._describe() == {
        "algorithm": "impala",
        "env": "CartPole-v1",
        "env_steps": 40,
        "seconds": 2.5,
        "evaluations": 3,
        "evaluation": {"eval_return": 1.0},
        "best": 8.0,
        "metrics_bytes": 123,
        "shoal": __version__,
    }


# ---- why it ends


@pytest.mark.parametrize(
    ("options", "progress", "expected"),
    [
        ({"stop_steps": 100}, {"counts": {"env_steps": 99.0}}, None),
        ({"stop_steps": 100}, {"counts": {"env_steps": 100.0}}, "steps"),
        ({"stop_seconds": 5.0}, {"train_seconds": 4.9, "elapsed": 5.0 + START - 0.1}, None),
        ({"stop_seconds": 5.0}, {"train_seconds": 5.0, "elapsed": 6.0}, "seconds"),
        ({"stop_seconds": 5.0}, {"train_seconds": 0.0, "elapsed": 5.0 + START}, "seconds"),
        ({"stop_return": 5.0}, {"confirmed": {"eval_return": 6.0}, "counts": {"env_steps": 9.0}}, "return"),
        ({"stop_return": 5.0}, {"best": 6.0}, None),
    ],
)
def test_a_run_ends_exactly_at_its_stop_rule(
    options: dict[str, Any], progress: dict[str, Any], expected: str | None
) -> None:
    assert stop_reason(RunOptions(**options), Progress(**progress), False, False) == expected
    assert stop_reason(RunOptions(**options), Progress(**progress), False, True) == "interrupt"


def test_metrics_that_do_not_answer_are_not_waited_for_longer_than_a_second() -> None:
    waited: list[float] = []
    never = SimpleNamespace(done=lambda: False)
    metrics = SimpleNamespace(future=SimpleNamespace(snapshot=lambda evaluations_from: never))
    assert take_snapshot(cast(Any, SimpleNamespace(wait=waited.append)), metrics, 0) is None
    assert sum(waited) == pytest.approx(LATE)


# ---- how it ends


@pytest.mark.parametrize(("runtime", "expected"), [("local", 2.5), ("inline", None)])
def test_the_time_to_the_first_update_is_told_where_there_is_one_clock(runtime: Any, expected: float | None) -> None:
    life = running(made(RunOptions(runtime=runtime, stop_updates=1)))
    assert life._first_update_seconds() is None
    life.first_update = 12.5
    assert life._first_update_seconds() == expected


class Ends:
    """The last calls to a run."""

    supervisor = Supervisor()
    answers = None

    def __init__(self) -> None:
        self.evaluated: list[Any] = []

    def finish(self) -> None: ...

    def final_weights(self, confirmed: bool) -> Any:
        return make_version(0, 5), {"w": np.ones(1)}

    def evaluate(self, *found: Any) -> bool:
        self.evaluated.append(found[0])
        return True

    def snapshot(self, evaluations_from: int) -> None: ...


def test_the_weights_that_are_saved_are_evaluated_unless_they_were_confirmed() -> None:
    saver: Any = SimpleNamespace(finish=lambda *given: None)
    for confirmed, evaluated in (({"eval_return": 5.0}, []), (None, [make_version(0, 5)])):
        life, ends = running(), Ends()
        life.checkpointer, life.progress.confirmed = saver, confirmed
        final = life._end(cast(Any, ends))
        assert (final.version, ends.evaluated) == (make_version(0, 5), evaluated)


def test_what_a_callback_raises_at_the_very_end_keeps_nothing_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "ROW_EVERY", 1e9)  # a row at the beginning, and one at the end
    told: list[Any] = []

    def fail(row: Any) -> None:
        told.append(row)
        if len(told) == 2:
            raise ZeroDivisionError("mine")

    options: dict[str, Any] = {"runtime": "inline", "run_dir": str(tmp_path / "run"), "eval_every": 1e6}
    result = train(CFG, on_progress=fail, stop_updates=1, **options)
    assert (result.stopped_by, result.saved_version, len(told)) == ("updates", 1, 2)
    assert "on_progress raised ZeroDivisionError: mine" in capsys.readouterr().err
