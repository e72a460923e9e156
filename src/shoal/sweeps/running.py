"""Running a sweep: so many runs at a time, each a process; what was killed goes on, what failed stops nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.checkpoints import RunLock
from shoal.errors import UserError
from shoal.experiment.resuming import finished
from shoal.runs.directory import read_rows
from shoal.runs.tables import Table, is_number
from shoal.sweeps import report
from shoal.sweeps.log import SweepLog, Trial
from shoal.sweeps.processes import RunProcess
from shoal.sweeps.search import make_search
from shoal.sweeps.spec import Sweep, grid, read_sweep

TICK = 0.2  # seconds between two looks at the runs
LOOK_EVERY = 2.0  # seconds between two looks at how they stand, for a pruner
PATIENCE = 60.0  # seconds for a run to end in order


@dataclass(frozen=True)
class SweepResult:
    folder: str
    best_parameters: dict[str, Any] | None
    best_value: float | None
    trials: Table  # the best first
    importance: dict[str, float]


class Display(Protocol):
    def note(self, text: str) -> None: ...
    def update(self, runner: Runner) -> None: ...
    def end(self) -> None: ...


class Silent:
    def note(self, text: str) -> None:
        pass

    def update(self, runner: Runner) -> None:
        pass

    def end(self) -> None:
        pass


def sweep(
    source: str | os.PathLike[str] | Mapping[str, Any], *, display: Display | None = None, **changes: Any
) -> SweepResult:
    """Run a sweep, or go on with it: `source` is a TOML file or a dict of the same shape, `changes` are settings of its
    table [sweep]. Ctrl-C ends the runs in order; the same call goes on with them."""
    found = read_sweep(source if isinstance(source, Mapping) else Path(source), changes)
    runner = Runner(found, display or Silent())
    runner.run()
    best = report.best_trial(found, runner.log)
    return SweepResult(
        folder=str(found.folder),
        best_parameters=None if best is None else best.parameters,
        best_value=None if best is None else report.value_of(found, best),
        trials=report.results(found, runner.log),
        importance=report.importance(found, runner.log),
    )


class Runner:
    """Holds the sweep's lock while it runs."""

    def __init__(self, sweep: Sweep, display: Display) -> None:
        self.sweep, self.log, self._display = sweep, SweepLog(sweep), display
        self._search = make_search(sweep)
        self.running: dict[tuple[int, int], RunProcess] = {}
        self.waiting: list[tuple[int, int]] = []  # trial and seed
        self._told: set[int] = set()
        self._reported: dict[int, int] = {}  # evaluations of a trial that a pruner knows
        self._next_look = 0.0
        self.complete = False  # no further trial will come
        self.parallel = sweep.settings.parallel or _default_parallel(sweep)

    def run(self) -> None:
        try:
            self._run()
        except BrokenPipeError:
            raise  # nobody reads what is printed
        except OSError as error:
            raise UserError(
                f"The sweep in {self.log.folder} cannot go on ({error.strerror or error}): when that is put right, the "
                "same command goes on with it."
            ) from error

    def _run(self) -> None:
        self.log.folder.mkdir(parents=True, exist_ok=True)
        with RunLock(self.log.folder):
            self.log.open()
            self._recover()
            try:
                while self._step():
                    self._display.update(self)
                    time.sleep(TICK)
            except BaseException:
                self._end_all()
                raise
            finally:
                self._display.update(self)
                self._display.end()
                for line in report.write(self.sweep, self.log):
                    self._display.note(line)

    def _recover(self) -> None:
        """What earlier lives have begun: done, failed for good, or to be gone on with."""
        for trial in self.log.trials.values():
            self._search.again(trial.number, trial.parameters)
            self.waiting += [(trial.number, seed) for seed in self.sweep.seeds if self._open(trial, seed)]
        for trial in self.log.trials.values():
            self._tell_if_over(trial)
        done = sum(len(trial.results) for trial in self.log.trials.values())
        if self.log.trials:
            self._display.note(f"going on in {self.log.folder}: {done} done, {len(self.waiting)} go on")

    def total(self) -> int:
        """How many runs there will be if no trial is ended early."""
        settings = self.sweep.settings
        sizes = [] if settings.trials is None else [settings.trials]  # only a grid may have none
        sizes += [len(grid(self.sweep.parameters))] if settings.sampler == "grid" else []
        return min(sizes) * len(self.sweep.seeds)

    def _open(self, trial: Trial, seed: int) -> bool:
        failed = len(trial.failures.get(seed, [])) > self.sweep.settings.retries
        return seed not in trial.results and not failed and not trial.pruned

    def _step(self) -> bool:
        """Take in what has ended and start what can be; False when all is done."""
        for key, process in list(self.running.items()):
            code = process.code()
            if code is not None:
                del self.running[key]
                self._ended(*key, process, code)
        self._look()
        while len(self.running) < self.parallel and (self.waiting or self._new_trial()):
            number, seed = self.waiting.pop(0)
            trial = self.log.trials[number]
            options = self.sweep.options(trial.parameters)
            self.running[number, seed] = RunProcess(options, seed, self.log.path(number, seed))
        return bool(self.running or self.waiting)

    def _new_trial(self) -> bool:
        number = 1 + max(self.log.trials, default=-1)
        parameters = self._search.next(number)
        self.complete = parameters is None
        if parameters is None:
            return False
        self.log.begin(number, parameters)
        self.waiting += [(number, seed) for seed in self.sweep.seeds]
        return True

    def _ended(self, number: int, seed: int, process: RunProcess, code: int) -> None:
        trial, name = self.log.trials[number], f"trial {number} seed {seed}"
        summary = finished(process.path)
        if summary is not None:
            trial.results[seed] = summary
            value = summary.get(self.sweep.settings.metric)
            told = f"{value:.5g}" if isinstance(value, int | float) else "nothing"
            self._display.note(f"{name}: {self.sweep.settings.metric} {told}, stopped by {summary['stopped_by']}")
        elif trial.pruned:
            self._display.note(f"{name}: ended early by the pruner")
        else:
            why = process.why() if code >= 0 else f"it was ended by {signal.Signals(-code).name}"
            self.log.failed(trial, seed, why)
            again = self._open(trial, seed)
            self._display.note(f"{name} failed{', and is started again' if again else ''}: {why} (see {process.log})")
            if again:
                self.waiting.append((number, seed))
        self._tell_if_over(trial)

    def _tell_if_over(self, trial: Trial) -> None:
        """The sampler hears of a trial when nothing of it is to come."""
        busy = any(number == trial.number for number, _ in [*self.running, *self.waiting])
        if trial.number not in self._told and not busy:
            self._told.add(trial.number)
            self._search.tell(trial.number, report.value_of(self.sweep, trial))

    def _look(self) -> None:
        """Report evaluations to the pruner: the first seed's to have them, counted from the trial's beginning."""
        if self.sweep.settings.pruner == "none" or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY
        for (number, _), process in list(self.running.items()):
            trial = self.log.trials[number]
            known = self._reported.get(number, 0)
            if trial.pruned or not (process.path / "metrics.jsonl").is_file():
                continue
            for row in read_rows(process.path, "evaluation")[known:]:
                known += 1
                self._reported[number] = known
                if is_number(judged := row.get("eval_return")) and self._search.report(number, known, float(judged)):
                    self.log.prune(trial)
                    self._end_trial(number)
                    break

    def _end_trial(self, number: int) -> None:
        self.waiting = [key for key in self.waiting if key[0] != number]
        for key, process in self.running.items():
            if key[0] == number:
                process.end()

    def _end_all(self) -> None:
        for process in self.running.values():
            process.end()
        deadline = time.monotonic() + PATIENCE
        for process in self.running.values():
            process.wait(max(0.1, deadline - time.monotonic()))


def _default_parallel(sweep: Sweep) -> int:
    """A run has an actor and a learner that compute at the same time; inline, one thread."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores if sweep.base.get("runtime") == "inline" else cores // 2)
