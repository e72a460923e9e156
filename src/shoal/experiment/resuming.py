"""Going on with a run that was interrupted: what it was, what may be different now, and where it goes on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import config
from shoal.checkpoints import Checkpoint, Checkpoints, DamagedCheckpoint, RunLock
from shoal.checkpoints.own_files import refuse_links
from shoal.checkpoints.store import MANIFEST
from shoal.config import validate
from shoal.errors import UserError
from shoal.experiment.replay_saves import REPLAY, check_saves
from shoal.options import Acting
from shoal.runs import directory, ended_weights, records, registry, sinks
from shoal.runs.ended_weights import EndedWeights
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm
from shoal.runs.tables import is_number

FIXED = {  # options of a run that cannot be others when it goes on, and why
    "seed": "a run goes on with its own random numbers",
    "run_dir": "that is another run",
    "restore": "it has weights of its own by now",
    "restore_partial": "it has weights of its own by now",
    "freeze": "its optimizer has moments for what was trained",
}
FAR = 0.05  # of all updates: weights that are so much ahead of a checkpoint are worth more than an optimizer's state
COUNTS = ("updates", "env_steps", "seconds", "evaluations", "metrics_bytes")  # that a checkpoint's meta has
WRITTEN = (directory.CHECKPOINTS, directory.FILMS, REPLAY, sinks.FOLDER)  # folders in which a run writes and removes
STOPS = ("stop_return", "stop_steps", "stop_updates", "stop_seconds")


@dataclass
class Resumed:
    """Where a run goes on."""

    path: Path
    lock: RunLock  # held
    life: int  # 1 for the first time
    checkpoint: Checkpoint | None = None  # None: it goes on from its last weights, or begins again
    meta: Mapping[str, Any] = field(default_factory=dict)  # counts, as of a checkpoint; none where it begins again
    parts: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # what the user is told


@dataclass(frozen=True)
class Plan:
    """A run as it was recorded, with what is to be different now."""

    name: str
    algorithm: Algorithm
    cfg: Acting
    options: RunOptions
    resumed: Resumed


def plan(
    path: Path, options: Mapping[str, Any], values: Mapping[str, Any], *, trust: bool = False, named: bool = False
) -> Plan:
    """Read a run directory, take its lock, and find the checkpoint to go on from. `options` and fields of the config
    (`values`) that are given take the place of the recorded ones. Code that a run of others names needs `trust`,
    but for the algorithm where the user has `named` it."""
    record = directory.read_config(path)
    lock = RunLock(path)
    lock.acquire()
    try:
        refuse_links(path, WRITTEN)
        name, algorithm, cfg = records.rebuild(path, values, trust=trust, named=named)
        recorded = _recorded_options(record, path)
        _refuse(record, recorded, options, values)
        chosen = dataclasses.replace(recorded, **options, run_dir=str(path), resume="never")
        validate(chosen)
        _refuse_finished(path, options)
        resumed = Resumed(path, lock, int(record.get("life", 0)) + 1)
        resumed.lines += _differences(record, recorded, options, values)
        _find_place(resumed, record, chosen)
        _refuse_what_is_behind(resumed, options, chosen)
        _refuse_another_replay(resumed, record, values)
        return Plan(name, algorithm, cfg, chosen, resumed)
    except BaseException:
        lock.release()
        raise


def finished(path: Path, options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The summary of a run that has ended by its stop rule, and has not gone on since; `options` ask for nothing more
    where they have the same stop rules."""
    summary = ended_weights.read_summary(path)
    if summary.get("stopped_by") not in ("return", "steps", "updates", "seconds"):
        return None
    if ended_weights.lived_on(path, summary):
        return None
    if given := {stop: value for stop, value in (options or {}).items() if stop in STOPS}:
        recorded = _recorded_options(directory.read_config(path), path)
        if any(value != getattr(recorded, stop) for stop, value in given.items()):
            return None
    return summary


def _find_place(resumed: Resumed, record: Mapping[str, Any], options: RunOptions) -> None:
    """The newest checkpoint; the weights with which the run has ended where there is none, or they are far ahead of it;
    or the beginning, where nothing was saved yet."""
    store = Checkpoints(resumed.path / directory.CHECKPOINTS, options.keep)
    store.clean()
    found, complaints = store.newest(lambda checkpoint: _check(resumed.path, checkpoint))
    ended = ended_weights.read(resumed.path)
    resumed.lines += [f"{complaint} Going on from the one before." for complaint in complaints]
    if found is None:
        if complaints:
            raise DamagedCheckpoint(
                f"No checkpoint of {resumed.path} can be read: {complaints[0]}"
                + (f" Move them away to go on from its {directory.WEIGHTS}." if ended else "")
            )
        if ended is None:
            _begin_again(resumed)
        else:
            _go_on_from(ended, resumed, "there is no checkpoint")
        return
    reached = found.meta["updates"]
    if ended is not None and not complaints and ended.updates - reached > FAR * ended.updates:
        _go_on_from(ended, resumed, f"the newest checkpoint, {found.path.name}, is of {reached:,} updates")
        return
    told = {name: found.meta.get(name) for name in ("algorithm", "env")}
    expected = {"algorithm": registry.short_name(record["algorithm"]), "env": record["env"]}
    for name, value in told.items():
        if str(value).rpartition(":")[2] != expected[name].rpartition(":")[2]:  # it may be in a module by now
            raise UserError(
                f"{found.path} is of the {name} {value}, and the run in {resumed.path} of {expected[name]}: "
                "its files were mixed with another run's."
            )
    resumed.checkpoint, resumed.meta = found, found.meta
    resumed.parts = {part: found.part(part) for part in found.parts}
    resumed.lines.append(
        f"going on from {found.path.name}: {found.meta['updates']:,} updates, {found.meta['env_steps']:,} steps, "
        f"{found.meta['seconds']:,.0f} s of training"
    )
    if ended is not None and ended.updates > reached:
        resumed.lines.append(f"{directory.WEIGHTS} of {ended.updates:,} updates is kept as {ended.keep_aside()}")


def _begin_again(resumed: Resumed) -> None:
    trained = ended_weights.updates_of(resumed.path)
    if trained:
        raise UserError(
            f"The run in {resumed.path} has made {trained:,} updates, of which neither a checkpoint nor "
            f"{directory.WEIGHTS} is left: start a new run, with another --run-dir."
        )
    resumed.lines.append("there is no checkpoint yet: training begins again")


def _go_on_from(ended: EndedWeights, resumed: Resumed, why: str) -> None:
    resumed.meta, metrics = ended.state()
    resumed.parts = {"weights": directory.load_archive(resumed.path / directory.WEIGHTS), "metrics": metrics}
    resumed.lines.append(
        f"{why}: going on from {directory.WEIGHTS}, {ended.updates:,} updates, {resumed.meta['env_steps']:,} steps; "
        "lost is what only checkpoints hold: the optimizer's state, targets, the replay, open episodes"
    )


def _check(run: Path, checkpoint: Checkpoint) -> None:
    """Raise `DamagedCheckpoint` unless a checkpoint says what a run needs to go on, and its replays are there."""
    meta = checkpoint.meta
    strange = [name for name in COUNTS if not is_number(meta.get(name)) or meta[name] < 0]
    if not isinstance(meta.get("evaluation"), dict | None) or not (meta.get("best") is None or is_number(meta["best"])):
        strange.append("evaluation")
    replay = meta.get(REPLAY, {})
    if not isinstance(replay, dict) or not all(isinstance(tag, str) for tag in replay.values()):
        strange.append(REPLAY)
    if strange:
        raise DamagedCheckpoint(f"{checkpoint.path / MANIFEST} is damaged: {strange[0]} in it is no such value.")
    if "metrics" not in checkpoint.parts or "notes" not in (checkpoint.part("metrics") or ()):
        raise DamagedCheckpoint(f"{checkpoint.path} is damaged: it has no counts.")
    check_saves(run, checkpoint)


def _recorded_options(record: Mapping[str, Any], path: Path) -> RunOptions:
    known = {option.name for option in dataclasses.fields(RunOptions)}
    values = record.get("options")
    if not isinstance(values, dict):
        raise UserError(f"{path / directory.CONFIG} has no options: the run cannot be rebuilt from it.")
    try:
        options = RunOptions(**{name: value for name, value in values.items() if name in known})
        options.check()
    except (TypeError, UserError) as error:
        raise UserError(f"{path / directory.CONFIG} cannot be used: {error}") from None
    return options


def _refuse(
    record: Mapping[str, Any], recorded: RunOptions, options: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    for name, reason in FIXED.items():
        if name in options and options[name] != getattr(recorded, name):
            raise UserError(f"{config.option(name)} cannot change when a run goes on: {reason}.")
    for name in ("env", "env_options"):
        before = record["config"].get(name)
        found_again = name in (record.get("lost") or [])  # it has a name now
        if _in_file(values.get(name, before)) != _in_file(before) and not found_again:
            raise UserError(f"{config.option(name)} cannot change when a run goes on: start a new one.")


def _refuse_another_replay(resumed: Resumed, record: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    if "length" in record["config"]:  # items are sequences, of which a learner works out returns itself
        items: tuple[str, ...] = ("length", "period", "burn_in")
    else:  # a transition's return is what it was stored with
        items = ("n", "gamma", "reward_clip")
    for name in ("capacity", "shards", "pattern", *(items if "capacity" in record["config"] else ())):
        before = record["config"].get(name)
        if REPLAY in resumed.meta and values.get(name, before) != before:
            raise UserError(
                f"{config.option(name)} cannot change when a run goes on with its replay: it was saved with {before}. "
                f"Leave it out, or start a new run with --restore {resumed.path}."
            )


def _refuse_what_is_behind(resumed: Resumed, options: Mapping[str, Any], chosen: RunOptions) -> None:
    """A stop that was passed before would end the run at once, against what another one asks for that is given now."""
    for name in ("steps", "updates", "seconds"):
        stop = getattr(chosen, f"stop_{name}")
        passed = resumed.meta.get("env_steps" if name == "steps" else name, 0)
        if stop is None or passed < stop or not any(options.get(given) is not None for given in STOPS):
            continue
        if options.get(f"stop_{name}") is None:
            raise UserError(
                f"The run in {resumed.path} would end at once, by the --stop-{name} {stop:,.12g} that it was started "
                f"with and has reached ({passed:,.12g} {name}): give --stop-{name} too, with more."
            )
        raise UserError(
            f"--stop-{name} {stop:g} is behind the run in {resumed.path}, which has {round(passed, 1):,.12g} {name}: "
            "give more."
        )


def _refuse_finished(path: Path, options: Mapping[str, Any]) -> None:
    if (summary := finished(path, options)) is not None:
        reason = summary["stopped_by"]
        raise UserError(
            f"The run in {path} has ended, by its stop rule ({reason}): give another one to go on, such as "
            f"--stop-{reason} with a larger number."
        )


def _differences(
    record: Mapping[str, Any], recorded: RunOptions, options: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    before = {**record["config"], **dataclasses.asdict(recorded)}
    changed = {
        name: value for name, value in {**options, **values}.items() if _plain(before.get(name)) != _plain(value)
    }
    return [f"{config.option(name)} was {before.get(name)}, now {value}" for name, value in changed.items()]


def _in_file(value: Any) -> str:
    return json.dumps(records.recorded_value(value), default=str)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else records.recorded_value(value)
