"""One run, from a finished config to a complete run directory: what is run, and one life of it, which is watched and
stopped by the rule."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal import __version__, config
from shoal.analysis import plots
from shoal.checkpoints import Checkpoints, RunLock
from shoal.data.minari import is_name
from shoal.data.writer import check_new, check_writable
from shoal.envs import EnvSpec
from shoal.envs.check import frame_space
from shoal.errors import UserError
from shoal.experiment import exact, view
from shoal.experiment.checkpointing import Checkpointer, start_program
from shoal.experiment.checks import prepare
from shoal.experiment.ending import Ending, Final, Interrupts
from shoal.experiment.listeners import Callbacks, Listeners
from shoal.experiment.places import Prints, on_cluster, told_places
from shoal.experiment.progress import Progress
from shoal.experiment.replay_saves import REPLAY, start_replays, unsaved_note
from shoal.experiment.restoring import Restored, check_fits, restore
from shoal.experiment.resuming import Resumed
from shoal.experiment.reviving import Reviving
from shoal.experiment.scaling import Growing, Scaling, sizes, with_actors
from shoal.experiment.tuning import advise_after
from shoal.experiment.watching import Waited, learning_is_over, metrics_of, stop_reason, take_snapshot, user_error
from shoal.loops.filming import FilmPlan
from shoal.loops.recorded import RecordPlan
from shoal.loops.wiring import Settings
from shoal.options import Acting
from shoal.program import Program, node_seed
from shoal.runs import records, registry, trust
from shoal.runs.directory import CHECKPOINTS, FILMS, RunDirectory
from shoal.runs.ended_weights import read_summary
from shoal.runs.options import Result, RunOptions, StoppedBy
from shoal.runs.registry import Algorithm
from shoal.runs.sinks import Sinks, named
from shoal.runtime import Run, Supervisor, launch
from shoal.runtime.restarts import Hang, Loss, RunFailed
from shoal.types import Role
from shoal.versions import NONE, number

TICK = 0.1  # seconds between two looks at the run
ROW_EVERY = 1.0  # seconds between two rows of metrics
LOOK = 0.5  # seconds between two looks at what a learner waits for that has not begun
WITHOUT_UPDATE = 30.0  # seconds of training after which the user is told why there is none


class Experiment:
    """What is run: an algorithm's finished config, its environment, the options, and where it goes on, if it does."""

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
        self.callbacks = Callbacks()
        self.resumed = resumed
        self.on_saved: Callable[[int], None] = lambda updates: None  # told of every checkpoint: its updates
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
            return RunningExperiment(self, directory, display).live()
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

    def settings(self, run: Path) -> Settings:
        options, folder = self.options, str((run / FILMS).resolve())
        filmed = FilmPlan(options.record_every, folder, options.record_format) if options.record_every else None
        return Settings(
            films=filmed,
            recording=self._recording(),
            target=options.stop_return,
            max_updates=options.stop_updates,
            max_steps=options.stop_steps,
            eval_episodes=options.eval_episodes,
            eval_every=options.eval_every,
            frozen=options.freeze,
        )

    def _recording(self) -> RecordPlan | None:
        path, env = self.options.record_data, self.env
        if path is None:
            return None
        if is_name(path):
            raise UserError(
                f"--record-data {path}: name a new folder; `shoal data export FOLDER --output {path}` makes a Minari "
                "dataset of it."
            )
        if self.resumed is None:
            check_new(Path(path))
            check_writable(Path(path))
        return RecordPlan(
            str(Path(path).resolve()),
            frame_space(env.observation_space, env.stacks),
            env.action_space,
            env.native_action_space,
            env.name,
            records.recorded_value(env.options),
            f"what the actors of {registry.short_name(self.name)} did, seed {self.options.seed}",
        )

    def program(self, run: Path) -> tuple[Program, dict[str, Any] | None, list[str]]:
        """The program, the states of all its nodes where it goes on exactly, and what the user should know of how it
        begins."""
        program = self.algorithm.program(self.cfg, self.env, self.settings(run))
        if self.options.record_data is not None and not program.with_role(Role.REPLAY, Role.QUEUE):
            raise UserError("--record-data needs actors that send what they do to a replay: this program has none.")
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

    def seed(self) -> int:
        """Another one in every life: what has no state to go on with must not repeat what it did."""
        life = self.life()
        return self.options.seed if life == 0 else node_seed(self.options.seed, "life", life)

    def life(self) -> int:
        """How many times the run has gone on."""
        return 0 if self.resumed is None else self.resumed.life

    def begin_lines(self, run: Path) -> list[str]:
        options = self.options
        own = " (the environment's own threshold)" if self.threshold else ""
        lost = records.lost_note(self.cfg)
        return [
            f"{registry.short_name(self.name)} on {self.env.name} · {options.runtime} · seed {options.seed}",
            config.preset_line(self.cfg, self.algorithm.PRESETS, self.env.kind),
            f"{options.stop_line()}{own} · run directory {run}",
            *([] if self.env.vectorizer_note is None else [self.env.vectorizer_note]),
            *([] if self.env.mask_note is None else [self.env.mask_note]),
            *(
                []
                if self.env.at_hand or self.env.outside
                else [f"no environment: evaluation is left out ({self._remedy()})"]
            ),
            *([f"note: {lost}"] if lost else []),
            *([] if self.resumed is None else self.resumed.lines),
            *([] if self.restored is None else self.restored.lines),
        ]

    def _remedy(self) -> str:
        return "add --env with the one that the data are of to have it"

    def code(self) -> list[str]:
        """Folders in which the code that the run names is looked for: other machines need it, too."""
        record = self.record()
        return [*record["folders"], os.getcwd()] if trust.named_code(record) else [*record["folders"]]

    def record(self) -> dict[str, Any]:
        record = records.record_of(self.name, self.cfg, self.env, self.options)
        return record | {"life": self.life()}


class RunningExperiment:
    """One life of a run: what is written down, shown, saved and told of while its program runs."""

    program: Program
    run: Run
    reviving: Reviving
    listeners: Listeners
    checkpointer: Checkpointer

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: view.Display) -> None:
        self.experiment, self.directory, self.display = experiment, directory, display
        options, cfg, resumed = experiment.options, experiment.cfg, experiment.resumed
        self.options, self.resumed = options, resumed
        self.progress = Progress(
            target=options.stop_return, stops=options.stops(), environments=cfg.actors * cfg.envs_per_actor
        )
        self.first_update: float | None = None
        self.notes = 0  # that were told
        self.told_waiting = self.told_losses = False
        self.next_look = 0.0  # at what is waited for, in seconds of the run
        if resumed is not None and resumed.meta:
            self.progress.go_on(resumed.meta)
            self.notes = len(resumed.parts["metrics"]["notes"])
        self.interrupts = Interrupts()
        self.supervisor = Supervisor(
            max_failures=options.max_failures,
            hang_seconds=options.hang_seconds,
            on_loss=self._lost,
            on_hang=self._hung,
            on_print=self._printed,
            on_note=self.display.note,
            interrupted=lambda: self.interrupts.asked,
        )
        self.prints = Prints(self.directory.path, self.display.note)

    def live(self) -> tuple[Result, Exception | None]:
        """The result, and what broke the run if something did."""
        with self.interrupts:
            try:
                self._launch()
            except BaseException as error:
                self.display.end()
                self._discard()
                if isinstance(error, RunFailed) and (sentence := user_error(error)) is not None:
                    raise UserError(sentence) from None
                raise
            with self.run:
                self._prepare_to_watch()
                try:
                    stopped_by, failure = self._until_stopped()
                    self.listeners.ending = True
                    if failure is not None and not self._never_began(failure):
                        self.display.note(
                            f"{str(failure).rstrip('.')}; the run ends, and what it has learned is saved"
                        )  # takes seconds
                    final = self._end(Ending(self.run, self.program, self.display.note))
                finally:
                    self.listeners.close()
                    self.display.end()
            if failure is not None and self._never_began(failure):
                self._discard()
                raise UserError(user_error(failure))
            unsaved = self._save_weights(final)
            if unsaved is not None:
                final = dataclasses.replace(final, weights={})
            result = self._result(stopped_by, final)
            self._save_summary(result, failure or unsaved)
            if failure is not None and (sentence := user_error(failure)) is not None:
                raise UserError(sentence)
            return result, failure or unsaved

    def _launch(self) -> None:
        experiment, options, path = self.experiment, self.options, self.directory.path
        self.program, states, told = experiment.program(path)
        self.display.begin([*experiment.begin_lines(path), *told])
        meta = {} if self.resumed is None else self.resumed.meta
        self.reviving = Reviving(self.program, path, meta.get(REPLAY, {}), self._tell)
        self.reviving.attach(self.supervisor)
        if self.resumed is None:
            self._write_config()  # whoever is killed from now on can go on
        given: dict[str, Any] = {"cluster": on_cluster(options), "states": states, "code": experiment.code()}
        self.progress.take_roles(self.program)
        self.run = launch(self.program, options.runtime, seed=experiment.seed(), supervisor=self.supervisor, **given)

    def _write_config(self) -> None:
        record = self.experiment.record()
        self.directory.write_config(record)
        if (why := trust.remember(record)) is not None:
            self.display.note(
                f"it cannot be remembered that this run was made here ({why}): to go on with it give --trust"
            )

    def _prepare_to_watch(self) -> None:
        self.interrupts.started = True
        if self.resumed is not None:
            self.directory.go_on()
            self._write_config()
        self.listeners = self._listen()
        store = Checkpoints(self.directory.path / CHECKPOINTS, self.options.keep)
        self.checkpointer = Checkpointer(
            store, self.run, self.program, self.options, self.display.note, self.reviving.saved
        )
        self.checkpointer.on_saved = self.experiment.on_saved

    def _discard(self) -> None:
        """What did not even start leaves nothing; what goes on leaves what it had."""
        if self.resumed is None:
            self.directory.discard()
        else:
            self.directory.close()

    def _never_began(self, failure: Exception) -> bool:
        """Whether it was a mistake of the user's that showed before anything was learned."""
        return (
            user_error(failure) is not None
            and self.resumed is None
            and not (self.progress.count("learner_steps") or self.progress.count("env_steps"))
        )

    def _describe(self) -> dict[str, Any]:
        """What a checkpoint says of the run."""
        progress = self.progress
        return {
            "algorithm": registry.short_name(self.experiment.name),
            "env": self.experiment.env.name,
            "env_steps": progress.count("env_steps"),
            "seconds": progress.seconds,
            "evaluations": progress.evaluations,
            "evaluation": progress.evaluation,
            "best": progress.best,
            "metrics_bytes": self.directory.offset(),
            "shoal": __version__,
        }

    # ---- while it runs

    def _until_stopped(self) -> tuple[StoppedBy, Exception | None]:
        try:
            return self._watch(), None
        except KeyboardInterrupt:
            return "interrupt", None
        except Exception as error:
            # a signal to the whole group ends the nodes too: then their loss is no failure
            return ("interrupt", None) if self.interrupts.asked else ("failure", error)

    def _watch(self) -> StoppedBy:
        metrics, waited, progress = metrics_of(self.run), Waited(self.run), self.progress
        scaling = self._scaling()
        growing = Growing(self.run, scaling, self.options.most_actors)
        begin, next_row = time.monotonic(), 0.0
        while True:
            finished = learning_is_over(self.run)  # asked first: who has finished has reported everything
            snapshot = take_snapshot(self.run, metrics, progress.evaluations)
            elapsed = time.monotonic() - begin
            if snapshot is None:
                progress.pass_time(elapsed)
            else:
                self._take(snapshot, elapsed)
            if (why := progress.hopeless(self.options.max_failures)) is not None:
                raise RunFailed("environments", why)
            self._see_what_is_waited_for(waited)
            self._scale(scaling, growing, elapsed)
            reason = stop_reason(self.options, progress, finished, self.interrupts.asked)
            if progress.counts and progress.elapsed >= next_row:
                next_row = progress.elapsed + ROW_EVERY
                self.directory.write_row("progress", progress.row())
            now = progress.seconds if self.options.runtime == "inline" else elapsed
            self.checkpointer.tick(now, progress.count("learner_steps"), progress.best, self._describe)
            self.listeners.checkpoint(self.checkpointer.newest(), progress.count("learner_steps"))
            reason = reason or ("callback" if self.listeners.stop else None)
            self.display.update(progress)
            if reason is not None:
                return reason
            # last: a run that goes on from there looks at it first
            self.checkpointer.wait(TICK, progress.best, self._describe)

    def _scaling(self) -> Scaling:
        settings = self.experiment.settings(self.directory.path)

        def program(cfg: Any) -> Program:
            made: Program = self.experiment.algorithm.program(cfg, self.experiment.env, settings)
            return made

        def tell(text: str, row: dict[str, Any]) -> None:
            self.display.note(text)
            self.directory.write_row("scale", {"text": text, "seconds": self.progress.seconds, **row})

        return Scaling(
            self.run, self.directory.path, lambda count: with_actors(self.experiment.cfg, program, count), tell
        )

    def _scale(self, scaling: Scaling, growing: Growing, now: float) -> None:
        """Do what `shoal scale` has asked for, or take what is free, and write it down: who goes on later begins with
        as many actors."""
        cfg = scaling.look() or growing.look(now)
        if cfg is not None:
            self.experiment.cfg = cfg
            self.directory.write_config(self.experiment.record())
        self.progress.take_roles(self.run.program)
        self.progress.members = sizes(self.run.program)
        self.progress.machines = told_places(self.run)

    def _listen(self) -> Listeners:
        """Have callbacks and the sinks of `--log` hear of every row that is written."""
        listeners = Listeners(self.experiment.callbacks, self.display.note)
        meta = {} if self.resumed is None else self.resumed.meta
        step = int(meta.get("env_steps") or meta.get("updates", 0))
        sinks, record = named(self.options.log), self.experiment.record()
        listeners.begin(Sinks(sinks, self.directory.path, record, step, self.display.note))
        self.directory.listener = listeners.tell
        return listeners

    def _take(self, snapshot: dict[str, Any], elapsed: float) -> None:
        """Take in a snapshot of the metrics, and write down what is new in it."""
        progress, restarts = self.progress, sum(self.supervisor.restarts.values())
        for record in progress.take(snapshot, elapsed, restarts, virtual=self.options.runtime == "inline"):
            policy = record.get("policy")
            self.directory.write_row("evaluation" if policy is None else f"{policy}/evaluation", record)
        for note in snapshot["notes"][self.notes :]:
            self._tell(note)
        self.notes = len(snapshot["notes"])
        if not self.told_losses and (said := progress.too_many_lost()) is not None:
            self.told_losses = True
            self._tell(said)
        self.reviving.read(snapshot, progress.evaluations)
        self.first_update = snapshot["first_update"]

    def _end(self, ending: Ending) -> Final:
        """Everything that is told from here on is told of the weights that are returned."""
        progress = self.progress
        stopped_at, confirmed = progress.elapsed, progress.confirmed is not None
        trained = progress.seconds if self.options.runtime == "inline" else progress.train_seconds
        found = None
        try:
            ending.finish()
            found = ending.final_weights(confirmed)
            if found is not None and not confirmed:
                ending.evaluate(*found)
        except KeyboardInterrupt:
            self.display.note("ended at once: the weights that are saved were not evaluated")
            found = found or ending.final_weights(confirmed)
        snapshot = ending.snapshot(progress.evaluations)
        if snapshot is not None:
            for record in snapshot["evaluations"] if trained else []:  # of weights that the stop found
                record["seconds"] = min(record["seconds"], trained)
            self._take(snapshot, stopped_at)
        self.directory.write_row("progress", progress.row())
        self.display.update(progress)
        try:
            self.checkpointer.finish(ending.answers, progress.best, self._describe)
        except OSError as error:  # weights and summary are written all the same
            self._tell(f"the last checkpoint could not be written: {error}")
        except KeyboardInterrupt:
            self._tell("ended at once, without a last checkpoint: those before are as they were")
        version, weights = found or (NONE, {})
        return Final(version, weights)

    def _see_what_is_waited_for(self, waited: Waited) -> None:
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
        self.display.note(
            f"no update after {progress.train_seconds:.0f} s and {progress.count('env_steps'):,} steps"
            + (f": {progress.waits_for} are there" if progress.waits_for else "")
        )

    def _tell(self, text: str) -> None:
        self.display.note(text)
        self.directory.write_row("note", {"text": text, "seconds": self.progress.seconds})

    def _hung(self, hang: Hang) -> None:
        self.display.note(f"node {hang.node!r} {hang.reason}" + ("; it is replaced" if hang.replaced else ""))
        self.directory.write_row("hang", dataclasses.asdict(hang))

    def _lost(self, loss: Loss) -> None:
        self.display.note(f"node {loss.node!r} {loss.reason}; restart {loss.restarts}" + _below(loss.traceback))
        self.directory.write_row("loss", dataclasses.asdict(loss))

    def _printed(self, node: str, machine: str, text: str) -> None:
        self.prints.take(node, machine, text)

    # ---- what it came to

    def _result(self, stopped_by: StoppedBy, final: Final) -> Result:
        progress, options = self.progress, self.options
        confirmed = progress.confirmed
        judged = confirmed or progress.evaluation
        seconds = progress.train_seconds
        return Result(
            algorithm=registry.short_name(self.experiment.name),
            env=self.experiment.env.name,
            runtime=options.runtime,
            seed=options.seed,
            env_steps=progress.count("env_steps"),
            learner_steps=progress.count("learner_steps"),
            env_steps_per_second=round(progress.count("env_steps") / seconds, 1) if seconds else 0.0,
            wall_seconds=round(time.monotonic() - self.experiment.started, 3),
            train_seconds=round(seconds, 3),
            eval_return=None if judged is None else judged["eval_return"],
            eval_version=None if judged is None else judged["version"],
            saved_version=number(final.version) if final.weights else None,
            reached=confirmed is not None,
            seconds_to_target=None if confirmed is None else round(confirmed["seconds"], 3),
            restarts=sum(self.supervisor.restarts.values()),
            lost=progress.lost(),
            lost_environments=progress.count("lost_environments"),
            lost_share=progress.lost_share(),
            too_many_lost=progress.too_many_lost(),
            run_dir=str(self.directory.path),
            stopped_by=stopped_by,
            target=options.stop_return,
            preset=self.experiment.cfg.preset,
            trained_steps=progress.count("trained_steps"),
            refused_updates=progress.count("refused_updates"),
            first_update_seconds=self._first_update_seconds(),
            bottleneck=progress.bottleneck(),
            advice=advise_after(progress, self.experiment.cfg, self.experiment.env, options.runtime),
        )

    def _first_update_seconds(self) -> float | None:
        """From the start of the command; elsewhere the metrics live on another machine's clock, or on a virtual one."""
        if self.first_update is None or self.options.runtime != "local":
            return None
        return round(self.first_update - self.experiment.started, 3)

    def _save_weights(self, final: Final) -> Exception | None:
        """Why they could not be saved, if so."""
        try:
            if final.weights:
                self.directory.write_weights(final.weights)
        except OSError as error:
            return OSError(f"the final weights could not be saved in {self.directory.path}: {error.strerror}")
        return None

    def _save_summary(self, result: Result, failure: Exception | None) -> None:
        record = result.as_dict() | {"times": self.progress.mean_times(), "life": self.experiment.life()}
        record["metrics_bytes"] = self.directory.offset()  # rows up to here are of the weights that are saved
        if result.saved_version is None:  # those that an earlier life has saved are still there
            earlier = read_summary(self.directory.path)
            record |= {name: earlier[name] for name in ("saved_version", "metrics_bytes") if name in earlier}
        self.directory.write_summary(record if failure is None else record | {"error": str(failure)})
        self.directory.close()
        plots.write_curve(self.directory.path)


def _below(traceback: str | None) -> str:
    return "" if traceback is None else "\n" + traceback.rstrip()
