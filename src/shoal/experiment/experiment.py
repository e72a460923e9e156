"""One run, from a finished config to a complete run directory: start the program, watch it, stop it by the rule."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from shoal import __version__, config
from shoal.analysis import plots
from shoal.checkpoints import Checkpoints, RunLock
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.experiment import exact, view
from shoal.experiment.checkpointing import Checkpointer, start_program
from shoal.experiment.checks import prepare
from shoal.experiment.ending import Ending, Final, Interrupts
from shoal.experiment.listeners import Callbacks, Listeners
from shoal.experiment.progress import Progress
from shoal.experiment.replay_saves import REPLAY, start_replays, unsaved_note
from shoal.experiment.restoring import Restored, check_fits, restore
from shoal.experiment.resuming import Resumed
from shoal.experiment.reviving import Reviving
from shoal.experiment.tuning import advise_after
from shoal.experiment.watching import Waited, learning_is_over, metrics_of, stop_reason, take_snapshot, user_error
from shoal.loops.filming import FilmPlan
from shoal.loops.wiring import Settings
from shoal.options import Acting
from shoal.program import Program, node_seed
from shoal.runs import records, registry
from shoal.runs.directory import CHECKPOINTS, FILMS, RunDirectory
from shoal.runs.options import Result, RunOptions, StoppedBy
from shoal.runs.registry import Algorithm
from shoal.runs.sinks import Sinks, named
from shoal.runtime import Run, Supervisor, launch
from shoal.runtime.supervise import Hang, Loss
from shoal.versions import NONE, number

TICK = 0.1  # seconds between two looks at the run
ROW_EVERY = 1.0  # seconds between two rows of metrics
LOOK = 0.5  # seconds between two looks at what a learner waits for that has not begun
WITHOUT_UPDATE = 30.0  # seconds of training after which the user is told why there is none


class Experiment:
    """One run, from a finished config to a complete run directory."""

    def __init__(
        self,
        name: str,
        algorithm: Algorithm,
        cfg: Acting,
        env: EnvSpec,
        options: RunOptions,
        started: float,
        resumed: Resumed | None = None,
    ) -> None:
        self.name, self.algorithm, self.cfg, self.env = name, algorithm, cfg, env
        self.threshold = options.with_threshold(env.reward_threshold) is not options
        self.options = options.with_threshold(env.reward_threshold)
        self.started = started  # on the monotonic clock
        self.progress = Progress(
            target=self.options.stop_return, stops=self.options.stops(), environments=cfg.actors * cfg.envs_per_actor
        )
        self.first_update: float | None = None
        self.notes = 0  # that were told
        self.told_waiting = self.told_losses = False
        self.next_look = 0.0  # at what is waited for, in seconds of the run
        self.callbacks = Callbacks()
        self.resumed = resumed
        self.on_saved: Callable[[int], None] = lambda updates: None  # told of every checkpoint: its updates
        if resumed is not None and resumed.meta:
            self.progress.go_on(resumed.meta)
            self.notes = len(resumed.parts["metrics"]["notes"])
        policy = prepare(algorithm, cfg, env, self.options)
        self.restored = None
        if resumed is not None and "weights" in resumed.parts:
            check_fits(policy, resumed.parts["weights"], resumed.path)
        if resumed is None or not resumed.meta:
            self.restored = restore(self.options, policy)
        elif resumed.checkpoint is None:
            parts = resumed.parts
            self.restored = Restored(parts["weights"], False, [], resumed.meta["updates"], parts["metrics"])

    def run(self, display: view.Display) -> tuple[Result, Exception | None]:
        """The result, and what broke the run if something did."""
        directory, lock = self._open(display)
        try:
            return self._run(directory, display)
        finally:
            lock.release()

    def _open(self, display: view.Display) -> tuple[RunDirectory, RunLock]:
        options, resumed = self.options, self.resumed
        if resumed is not None:
            offset = int(resumed.meta.get("metrics_bytes", 0))
            return RunDirectory.reopen(resumed.path, offset, resumed.life, display.note), resumed.lock
        short = registry.short_name(self.name)
        directory = RunDirectory.create(options.run_dir, short, self.env.name, options.seed, display.note)
        lock = RunLock(directory.path)
        lock.acquire()
        return directory, lock

    def _discard(self, directory: RunDirectory) -> None:
        """What did not even start leaves nothing; what goes on leaves what it had."""
        if self.resumed is None:
            directory.discard()
        else:
            directory.close()

    def _run(self, directory: RunDirectory, display: view.Display) -> tuple[Result, Exception | None]:
        options = self.options
        with Interrupts() as interrupts:
            supervisor = Supervisor(
                max_failures=options.max_failures,
                hang_seconds=options.hang_seconds,
                on_loss=lambda loss: self._lost(loss, directory, display),
                on_hang=lambda hang: self._hung(hang, directory, display),
                interrupted=lambda: interrupts.asked,
            )
            try:
                program, states, told = self._program(directory)
                display.begin([*self._begin_lines(directory), *told])
                meta = {} if self.resumed is None else self.resumed.meta
                self.reviving = Reviving(
                    program, directory.path, meta.get(REPLAY, {}), lambda text: self._tell(text, directory, display)
                )
                self.reviving.attach(supervisor)
                if self.resumed is None:
                    directory.write_config(self._record())  # whoever is killed from now on can go on
                given: dict[str, Any] = {"ray_address": options.ray_address, "states": states}
                self.progress.take_roles(program)
                run = launch(program, options.runtime, seed=self._seed(), supervisor=supervisor, **given)
            except BaseException:
                display.end()
                self._discard(directory)
                raise
            with run:
                interrupts.started = True
                if self.resumed is not None:
                    directory.go_on()
                    directory.write_config(self._record())
                listeners = self._listen(directory, display)
                store = Checkpoints(directory.path / CHECKPOINTS, options.keep)
                checkpointer = Checkpointer(store, run, program, options, display.note, self.reviving.saved)
                checkpointer.on_saved = self.on_saved
                try:
                    stopped_by, failure = self._until_stopped(
                        run, interrupts, directory, display, checkpointer, listeners
                    )
                    listeners.ending = True
                    if failure is not None and not self._never_began(failure):
                        display.note(f"{failure}; the run ends, and what it has learned is saved")  # takes seconds
                    final = self._end(Ending(run, program, display.note), checkpointer, directory, display)
                finally:
                    listeners.close()
                    display.end()
            if failure is not None and self._never_began(failure):
                self._discard(directory)
                raise UserError(user_error(failure))
            unsaved = self._save_weights(directory, final)
            if unsaved is not None:
                final = dataclasses.replace(final, weights={})
            result = self._result(stopped_by, final, directory, supervisor)
            self._save_summary(directory, result, failure or unsaved)
            if failure is not None and (sentence := user_error(failure)) is not None:
                raise UserError(sentence)
            return result, failure or unsaved

    def _never_began(self, failure: Exception) -> bool:
        """Whether it was a mistake of the user's that showed before anything was learned."""
        return user_error(failure) is not None and self.resumed is None and not self.progress.count("learner_steps")

    def _settings(self, directory: RunDirectory) -> Settings:
        options, folder = self.options, str((directory.path / FILMS).resolve())
        filmed = FilmPlan(options.record_every, folder, options.record_format) if options.record_every else None
        return Settings(
            films=filmed,
            target=options.stop_return,
            max_updates=options.stop_updates,
            max_steps=options.stop_steps,
            eval_episodes=options.eval_episodes,
            eval_every=options.eval_every,
            frozen=options.freeze,
        )

    def _program(self, directory: RunDirectory) -> tuple[Program, dict[str, Any] | None, list[str]]:
        """The program, the states of all its nodes where it goes on exactly, and what the user should know of how it
        begins."""
        program = self.algorithm.program(self.cfg, self.env, self._settings(directory))
        if self.restored is not None:
            self.restored.start(program)
        unsaved = unsaved_note(program, self.options.runtime) if self.options.checkpoint_replay else None
        told = [] if unsaved is None else [f"note: {unsaved}"]
        if self.resumed is None or self.resumed.checkpoint is None:
            return program, None, told
        parts, meta = self.resumed.parts, self.resumed.meta
        if exact.can_go_on(program, parts, meta, self.options.runtime):
            return program, exact.states_of(program, self.resumed.path, parts, meta), told
        unplaced = start_program(program, parts, meta)
        start_replays(program, self.resumed.path, meta)
        lost = f"there are fewer actors than before: the open episodes of {unplaced} are lost"
        return program, None, [*told, *([lost] if unplaced else [])]

    def _seed(self) -> int:
        """Another one in every life: what has no state to go on with must not repeat what it did."""
        life = self._life()
        return self.options.seed if life == 0 else node_seed(self.options.seed, "life", life)

    def _life(self) -> int:
        """How many times the run has gone on."""
        return 0 if self.resumed is None else self.resumed.life

    def _describe(self, directory: RunDirectory) -> dict[str, Any]:
        """What a checkpoint says of the run."""
        progress = self.progress
        return {
            "algorithm": registry.short_name(self.name),
            "env": self.env.name,
            "env_steps": progress.count("env_steps"),
            "seconds": progress.seconds,
            "evaluations": progress.evaluations,
            "evaluation": progress.evaluation,
            "best": progress.best,
            "metrics_bytes": directory.offset(),
            "shoal": __version__,
        }

    # ---- while it runs

    def _until_stopped(
        self,
        run: Run,
        interrupts: Interrupts,
        directory: RunDirectory,
        display: view.Display,
        checkpointer: Checkpointer,
        listeners: Listeners,
    ) -> tuple[StoppedBy, Exception | None]:
        try:
            return self._watch(run, interrupts, directory, display, checkpointer, listeners), None
        except KeyboardInterrupt:
            return "interrupt", None
        except Exception as error:
            # a signal to the whole group ends the nodes too: then their loss is no failure
            return ("interrupt", None) if interrupts.asked else ("failure", error)

    def _watch(
        self,
        run: Run,
        interrupts: Interrupts,
        directory: RunDirectory,
        display: view.Display,
        checkpointer: Checkpointer,
        listeners: Listeners,
    ) -> StoppedBy:
        metrics, waited, progress = metrics_of(run), Waited(run), self.progress
        begin, next_row = time.monotonic(), 0.0

        def describe() -> dict[str, Any]:
            return self._describe(directory)

        while True:
            finished = learning_is_over(run)  # asked first: who has finished has reported everything
            snapshot = take_snapshot(run, metrics, progress.evaluations)
            elapsed = time.monotonic() - begin
            if snapshot is None:
                progress.pass_time(elapsed)
            else:
                self._take(snapshot, elapsed, run.supervisor, directory, display)
            self._see_what_is_waited_for(waited, display)
            reason = stop_reason(self.options, progress, finished, interrupts.asked)
            if progress.counts and progress.elapsed >= next_row:
                next_row = progress.elapsed + ROW_EVERY
                directory.write_row("progress", progress.row())
            now = progress.seconds if self.options.runtime == "inline" else elapsed
            checkpointer.tick(now, progress.count("learner_steps"), progress.best, describe)
            listeners.checkpoint(checkpointer.newest(), progress.count("learner_steps"))
            reason = reason or ("callback" if listeners.stop else None)
            display.update(progress)
            if reason is not None:
                return reason
            checkpointer.wait(TICK, progress.best, describe)  # last: a run that goes on from there looks at it first

    def _listen(self, directory: RunDirectory, display: view.Display) -> Listeners:
        """Have callbacks and the sinks of `--log` hear of every row that is written."""
        listeners = Listeners(self.callbacks, display.note)
        step = 0 if self.resumed is None else int(self.resumed.meta.get("env_steps", 0))
        listeners.begin(Sinks(named(self.options.log), directory.path, self._record(), step, display.note))
        directory.listener = listeners.tell
        return listeners

    def _take(
        self,
        snapshot: dict[str, Any],
        elapsed: float,
        supervisor: Supervisor,
        directory: RunDirectory,
        display: view.Display,
    ) -> None:
        """Take in a snapshot of the metrics, and write down what is new in it."""
        progress, restarts = self.progress, sum(supervisor.restarts.values())
        for record in progress.take(snapshot, elapsed, restarts, virtual=self.options.runtime == "inline"):
            directory.write_row("evaluation", record)
        for note in snapshot["notes"][self.notes :]:
            self._tell(note, directory, display)
        self.notes = len(snapshot["notes"])
        if not self.told_losses and (said := progress.too_many_lost()) is not None:
            self.told_losses = True
            self._tell(said, directory, display)
        self.reviving.read(snapshot, progress.evaluations)
        self.first_update = snapshot["first_update"]

    def _end(self, ending: Ending, checkpointer: Checkpointer, directory: RunDirectory, display: view.Display) -> Final:
        """Everything that is told from here on is told of the weights that are returned."""
        progress = self.progress
        stopped_at, confirmed = progress.elapsed, progress.confirmed is not None
        found = None
        try:
            ending.finish()
            found = ending.final_weights(confirmed)
            if found is not None and not confirmed:
                ending.evaluate(*found)
        except KeyboardInterrupt:
            display.note("ended at once: the weights that are saved were not evaluated")
            found = found or ending.final_weights(confirmed)
        snapshot = ending.snapshot(progress.evaluations)
        if snapshot is not None:
            self._take(snapshot, stopped_at, ending.supervisor, directory, display)
        directory.write_row("progress", progress.row())
        display.update(progress)
        checkpointer.finish(ending.answers, progress.best, lambda: self._describe(directory))
        version, weights = found or (NONE, {})
        return Final(version, weights)

    def _see_what_is_waited_for(self, waited: Waited, display: view.Display) -> None:
        """While there is no update: what the learner waits for, which is shown, and told once when it takes long.
        Inline, it is looked at every time, so that no clock of this process counts."""
        progress, inline = self.progress, self.options.runtime == "inline"
        if progress.count("learner_steps") or not progress.counts:
            progress.waits_for = None
            return
        if inline or progress.elapsed >= self.next_look:
            self.next_look = progress.elapsed + LOOK
            progress.waits_for = waited.told()
        if self.told_waiting or (progress.seconds if inline else progress.train_seconds) < WITHOUT_UPDATE:
            return
        self.told_waiting = True
        display.note(
            f"no update after {progress.train_seconds:.0f} s and {progress.count('env_steps'):,} steps"
            + (f": {progress.waits_for} are there" if progress.waits_for else "")
        )

    def _tell(self, text: str, directory: RunDirectory, display: view.Display) -> None:
        display.note(text)
        directory.write_row("note", {"text": text, "seconds": self.progress.seconds})

    def _hung(self, hang: Hang, directory: RunDirectory, display: view.Display) -> None:
        display.note(f"node {hang.node!r} {hang.reason}" + ("; it is replaced" if hang.replaced else ""))
        directory.write_row("hang", dataclasses.asdict(hang))

    def _lost(self, loss: Loss, directory: RunDirectory, display: view.Display) -> None:
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
            *([] if self.env.vectorizer_note is None else [self.env.vectorizer_note]),
            *([f"note: {lost}"] if lost else []),
            *([] if self.resumed is None else self.resumed.lines),
            *([] if self.restored is None else self.restored.lines),
        ]

    def _record(self) -> dict[str, Any]:
        record = records.record_of(self.name, self.cfg, self.env, self.options)
        return record | {"life": self._life()}

    # ---- what it came to

    def _result(self, stopped_by: StoppedBy, final: Final, directory: RunDirectory, supervisor: Supervisor) -> Result:
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
            eval_version=None if judged is None else judged["version"],
            saved_version=number(final.version) if final.weights else None,
            reached=confirmed is not None,
            seconds_to_target=None if confirmed is None else round(confirmed["seconds"], 3),
            restarts=sum(supervisor.restarts.values()),
            lost=progress.lost(),
            lost_environments=progress.count("lost_environments"),
            lost_share=progress.lost_share(),
            too_many_lost=progress.too_many_lost(),
            run_dir=str(directory.path),
            stopped_by=stopped_by,
            target=options.stop_return,
            preset=self.cfg.preset,
            trained_steps=progress.count("trained_steps"),
            refused_updates=progress.count("refused_updates"),
            first_update_seconds=self._first_update_seconds(),
            bottleneck=progress.bottleneck(),
            advice=advise_after(progress, self.cfg, self.env, options.runtime),
        )

    def _first_update_seconds(self) -> float | None:
        """From the start of the command; elsewhere the metrics live on another machine's clock, or on a virtual one."""
        if self.first_update is None or self.options.runtime != "local":
            return None
        return round(self.first_update - self.started, 3)

    def _save_weights(self, directory: RunDirectory, final: Final) -> Exception | None:
        """Why they could not be saved, if so."""
        try:
            if final.weights:
                directory.write_weights(final.weights)
        except OSError as error:
            return OSError(f"the final weights could not be saved in {directory.path}: {error.strerror}")
        return None

    def _save_summary(self, directory: RunDirectory, result: Result, failure: Exception | None) -> None:
        record = result.as_dict() | {"times": self.progress.mean_times(), "life": self._life()}
        record["metrics_bytes"] = directory.offset()  # rows up to here are of the weights that are saved
        directory.write_summary(record if failure is None else record | {"error": str(failure)})
        directory.close()
        plots.write_curve(directory.path)


def _below(traceback: str | None) -> str:
    return "" if traceback is None else "\n" + traceback.rstrip()
