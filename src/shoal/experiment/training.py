"""Running an experiment: start the program, watch it, stop it by the rule, leave a complete run directory."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from shoal import config
from shoal.envs import EnvSpec, describe
from shoal.errors import UserError
from shoal.experiment import plots, records, registry, view
from shoal.experiment.directory import RunDirectory, Weights
from shoal.experiment.options import Options, Result, StoppedBy
from shoal.experiment.progress import Progress
from shoal.experiment.registry import Algorithm
from shoal.loops.wiring import Settings
from shoal.program import Handle, NodeDied
from shoal.runtime import Run, RunFailed, Supervisor, launch
from shoal.runtime.supervise import Loss
from shoal.versions import NONE

TICK = 0.1  # seconds between two looks at the run
ROW_EVERY = 1.0  # seconds between two rows of metrics
METRICS, WEIGHTS, LEARNER, EVALUATOR = Handle("metrics"), Handle("weights"), Handle("learner"), Handle("evaluator")


def train(cfg: Any, *, quiet: bool = False, **options: Any) -> Result:
    """Train with an algorithm's config, as `shoal train` does, until a stop rule is met.

    `options` are those of the command line: runtime, ray_address, seed, stop_return, stop_steps, stop_updates,
    stop_seconds, run_dir, max_failures, eval_every, eval_episodes. Fields of `cfg` that were not given are set by the
    preset for the environment's kind. Raises `UserError` for what cannot work and `RunFailed` when the run broke;
    Ctrl-C ends the run in order before it is raised here.
    """
    started = time.monotonic()
    known = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            raise UserError(f"train() has no option {name!r}.{config.did_you_mean(name, known)}")
    name, algorithm = registry.of_config(cfg)
    env = describe_env(cfg)
    cfg = config.apply_preset(cfg, algorithm.PRESETS, env.kind)
    experiment = Experiment(name, algorithm, cfg, env, Options(**options), started)
    result, failure = experiment.run(view.choose(quiet=quiet, json=False))
    if failure is not None:
        raise failure
    if result.stopped_by == "interrupt":
        raise KeyboardInterrupt
    return result


def describe_env(cfg: Any) -> EnvSpec:
    return describe(cfg.env, vectorizer=getattr(cfg, "vectorizer", "auto"))


def prepare(algorithm: Algorithm, cfg: Any, env: EnvSpec, options: Options) -> None:
    """Everything that can be refused before a process is started. A policy is built because that is where a network
    and an action space turn out not to fit."""
    config.validate(cfg)
    options.check()
    _check_device(getattr(cfg, "device", "cpu"))
    if options.runtime != "ray":  # there the replay may be on a larger machine
        _check_memory(cfg, env)
    algorithm.make_policy(cfg, env, options.seed)


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"--device {device} cannot be used here ({reason}): leave it at cpu.") from None


def _check_memory(cfg: Any, env: EnvSpec) -> None:
    """A replay that cannot fit would end the machine's work and not only the run."""
    capacity = getattr(cfg, "capacity", None)
    if capacity is None:
        return
    item = env.observation_bytes * getattr(cfg, "period", 1)  # sequences begin every so many steps
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if capacity * item > there:
        raise UserError(
            f"--capacity {capacity} needs {capacity * item / 1e9:,.0f} GB for observations of "
            f"{env.observation_bytes:,} bytes, and this machine has {there / 1e9:,.0f} GB: "
            f"give --capacity {int(0.5 * there / item)} or less."
        )


class Interrupts:
    """Ctrl-C and SIGTERM ask for an orderly end; a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only there can signals be handled
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def stop_reason(options: Options, progress: Progress, finished: bool, interrupted: bool) -> StoppedBy | None:
    """Why the run ends now, if it does."""
    if interrupted:
        return "interrupt"
    if options.stop_return is not None and progress.confirmed is not None:
        return "return"
    if finished:
        return "updates"
    if options.stop_steps is not None and progress.count("env_steps") >= options.stop_steps:
        return "steps"
    if options.stop_seconds is not None and progress.elapsed >= options.stop_seconds:
        return "seconds"
    return None


class Experiment:
    """One run, from a finished config to a complete run directory."""

    def __init__(
        self, name: str, algorithm: Algorithm, cfg: Any, env: EnvSpec, options: Options, started: float
    ) -> None:
        self.name, self.algorithm, self.cfg, self.env = name, algorithm, cfg, env
        self.threshold = options.with_threshold(env.reward_threshold) is not options
        self.options = options.with_threshold(env.reward_threshold)
        self.started = started  # on the monotonic clock
        self.progress = Progress(target=self.options.stop_return)
        self.first_update: float | None = None
        prepare(algorithm, cfg, env, self.options)

    def run(self, display: view.View) -> tuple[Result, Exception | None]:
        """The result, and what broke the run if something did."""
        options = self.options
        short = registry.short_name(self.name)
        directory = RunDirectory.create(options.run_dir, short, self.env.name, options.seed, display.note)
        settings = Settings(
            target=options.stop_return,
            max_updates=options.stop_updates,
            eval_episodes=options.eval_episodes,
            eval_every=options.eval_every,
        )
        supervisor = Supervisor(
            max_failures=options.max_failures, on_loss=lambda loss: self._lost(loss, directory, display)
        )
        failure: Exception | None = None
        stopped_by: StoppedBy = "failure"
        weights: Weights = {}
        with Interrupts() as interrupts:
            display.begin(self._begin_lines(directory))
            try:
                program = self.algorithm.program(self.cfg, self.env, settings)
                run = launch(
                    program, options.runtime, seed=options.seed, supervisor=supervisor, ray_address=options.ray_address
                )
            except BaseException:
                display.end()
                directory.discard()
                raise
            with run:
                directory.write_config(self._record())
                try:
                    stopped_by = self._watch(run, interrupts, directory, display)
                except Exception as error:
                    # a signal to the whole group ends the nodes too: then their loss is no failure
                    failure, stopped_by = (None, "interrupt") if interrupts.asked else (error, "failure")
                finally:
                    display.end()
                weights = last_weights(run, reached=stopped_by == "return")
        if failure is not None and (sentence := user_error(failure)) is not None:
            directory.discard()
            raise UserError(sentence)
        result = self._result(stopped_by, directory, supervisor)
        failure = self._save(directory, weights, result, failure)
        return result, failure

    def _watch(self, run: Run, interrupts: Interrupts, directory: RunDirectory, display: view.View) -> StoppedBy:
        metrics, progress = run.client(METRICS), self.progress
        begin, next_row, noted = time.monotonic(), 0.0, 0
        reason: StoppedBy | None = None
        while reason is None:
            run.wait(TICK)
            finished = run.finished(LEARNER)  # asked first: a learner that has finished has reported everything
            snapshot = take_snapshot(run, metrics, progress.evaluations)
            restarts = sum(run.supervisor.restarts.values())
            for record in progress.take(snapshot, time.monotonic() - begin, restarts):
                directory.write_row("evaluation", record)
            for note in snapshot["notes"][noted:]:
                display.note(note)
                directory.write_row("note", {"text": note, "seconds": progress.train_seconds})
            noted = len(snapshot["notes"])
            self.first_update = snapshot["first_update"]
            reason = stop_reason(self.options, progress, finished, interrupts.asked)
            if reason is not None or progress.elapsed >= next_row:
                next_row = progress.elapsed + ROW_EVERY
                directory.write_row("progress", progress.row())
            display.update(progress)
        return reason

    def _lost(self, loss: Loss, directory: RunDirectory, display: view.View) -> None:
        display.note(f"node {loss.node!r} {loss.reason}; restart {loss.restarts}" + _below(loss.traceback))
        directory.write_row("loss", dataclasses.asdict(loss))

    def _begin_lines(self, directory: RunDirectory) -> list[str]:
        options = self.options
        own = " (the environment's own threshold)" if self.threshold else ""
        lost = records.lost_note(self.cfg)
        return [
            f"{registry.short_name(self.name)} on {self.env.name} · {options.runtime} · seed {options.seed}",
            config.preset_line(self.cfg, self.algorithm.PRESETS, self.env.kind),
            f"{options.stop_line()}{own} · run directory {directory.path}",
            *([f"note: {lost}"] if lost else []),
        ]

    def _record(self) -> dict[str, Any]:
        return records.record_of(self.name, self.cfg, self.env.kind, self.options)

    def _result(self, stopped_by: StoppedBy, directory: RunDirectory, supervisor: Supervisor) -> Result:
        progress, options = self.progress, self.options
        confirmed = progress.confirmed
        judged = confirmed or progress.evaluation
        seconds = progress.train_seconds
        return Result(
            algorithm=registry.short_name(self.name),
            env=self.env.name,
            runtime=options.runtime,
            seed=options.seed,
            env_steps=progress.count("env_steps"),
            learner_steps=progress.count("learner_steps"),
            env_steps_per_second=round(progress.count("env_steps") / seconds, 1) if seconds else 0.0,
            wall_seconds=round(time.monotonic() - self.started, 3),
            train_seconds=round(seconds, 3),
            eval_return=None if judged is None else judged["eval_return"],
            reached=confirmed is not None,
            seconds_to_target=None if confirmed is None else round(confirmed["seconds"], 3),
            restarts=sum(supervisor.restarts.values()),
            run_dir=str(directory.path),
            stopped_by=stopped_by,
            target=options.stop_return,
            preset=getattr(self.cfg, "preset", config.NONE),
            trained_steps=progress.count("trained_steps"),
            refused_updates=progress.count("refused_updates"),
            first_update_seconds=self._first_update_seconds(),
            bottleneck=progress.bottleneck(),
        )

    def _first_update_seconds(self) -> float | None:
        """From the start of the command; on a cluster the metrics may live on another machine's clock."""
        if self.first_update is None or self.options.runtime == "ray":
            return None
        return round(self.first_update - self.started, 3)

    def _save(
        self, directory: RunDirectory, weights: Weights, result: Result, failure: Exception | None
    ) -> Exception | None:
        if weights:
            try:
                directory.write_weights(weights)
            except OSError as error:
                failure = failure or OSError(
                    error.errno, f"the final weights could not be saved in {directory.path}: {error.strerror}"
                )
        record = result.as_dict() | {"times": self.progress.mean_times()}
        directory.write_summary(record if failure is None else record | {"error": str(failure)})
        directory.close()
        plots.write_curve(directory.path)
        return failure


def take_snapshot(run: Run, metrics: Any, evaluations_from: int) -> dict[str, Any]:
    try:
        snapshot: dict[str, Any] = metrics.snapshot(evaluations_from)
        return snapshot
    except NodeDied:
        run.wait(1.0)  # the supervisor finds out which node was lost first, and raises that
        raise


def last_weights(run: Run, reached: bool) -> Weights:
    """The weights that were confirmed to reach the target, else the newest; also of a run that broke, as far as anybody
    still has them."""
    asked: list[tuple[Handle, str, tuple[Any, ...]]] = [(WEIGHTS, "newer", (NONE,))]
    if reached:  # the learner has gone on since, not always for the better
        asked.insert(0, (EVALUATOR, "confirmed", ()))
    for node, method, arguments in asked:
        try:
            found = getattr(run.client(node), method)(*arguments)
        except Exception:
            continue  # that node is gone: perhaps the next one has something
        if found is not None:
            weights: Weights = found[1]
            return weights
    return {}


def user_error(failure: Exception) -> str | None:
    """The sentence of a `UserError` that was raised inside a node."""
    return failure.user_error if isinstance(failure, RunFailed) else None


def _below(traceback: str | None) -> str:
    return "" if traceback is None else "\n" + traceback.rstrip()


def summary(result: Result) -> Sequence[str]:
    """What the user is told at the end."""
    lines = []
    score = "no evaluation" if result.eval_return is None else f"return {view.amount(result.eval_return)}"
    if result.reached:
        lines.append(
            f"reached {result.target:,.12g} after {result.seconds_to_target:.1f} s of training: {score}, confirmed"
        )
    else:
        wanted = "" if result.target is None else f", {result.target:,.12g} was not reached"
        lines.append(f"stopped by {result.stopped_by}: {score}{wanted}")
    lines.append(
        f"{result.env_steps:,} steps in {result.train_seconds:.1f} s ({result.env_steps_per_second:,.0f}/s), "
        f"{result.learner_steps:,} updates; {result.wall_seconds:.1f} s in all"
    )
    lines.append(f"{view.many(result.restarts, 'restart')}, {view.many(result.refused_updates, 'update')} refused")
    lines.append(f"bottleneck: {result.bottleneck}")
    lines.append(f"run directory: {result.run_dir}")
    lines.append(f"play it again: shoal eval {result.run_dir}")
    return lines
