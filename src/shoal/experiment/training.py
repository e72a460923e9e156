"""How a run is started, by the commands and by `shoal.train` and `shoal.resume`: the one way there is."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal import config
from shoal.arguments import config_files
from shoal.errors import UserError, did_you_mean
from shoal.experiment import view
from shoal.experiment.environments import describe_task, fit, with_dataset
from shoal.experiment.experiment import Experiment
from shoal.experiment.listeners import Callback, Callbacks
from shoal.experiment.resuming import finished, plan
from shoal.options import Acting
from shoal.runs import directory, registry
from shoal.runs.options import Result, RunOptions


def train(
    cfg: Acting | str | os.PathLike[str],
    *,
    quiet: bool = False,
    on_progress: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    trust: bool = False,
    **options: Any,
) -> Result:
    """Train with an algorithm's config, or a config file's path, as `shoal train` does, until a stop rule is met.

    `options` are those of the command line: runtime, ray_address, seed, stop_return, stop_steps, stop_updates,
    stop_seconds, run_dir, max_failures, hang_seconds, checkpoint_every, checkpoint_updates, checkpoint_replay, keep,
    resume, restore, restore_partial, freeze, eval_every, eval_episodes, record_every, record_format, log. Fields of
    `cfg` that were not given are set by the preset for the environment's kind. With `resume="auto"` the run in
    `run_dir` goes on, if there is one (`trust` as for `shoal.load`); of one that has ended, the result is given at
    once. Callbacks are given a dict, of numbers or with a path, while the run goes on, and end it by returning True
    (`shoal.experiment.listeners`). Raises `UserError` for what cannot work and `RunFailed` when the run broke; Ctrl-C
    ends the run in order before it is raised here.
    """
    started = time.monotonic()
    if isinstance(cfg, os.PathLike) or (isinstance(cfg, str) and cfg.endswith(".toml")):
        cfg, options = config_files.load(Path(cfg), options)
    known = [field.name for field in dataclasses.fields(RunOptions)]
    if isinstance(cfg, str) and cfg in registry.names():
        fields = ", ".join(f"{name}={value!r}" for name, value in options.items() if name not in known)
        raise UserError(
            f"train() needs an algorithm's config, not its name: from shoal.algorithms import {cfg}, then "
            f"shoal.train({cfg}.Config({fields or 'env=…'}), …)."
        )
    for name in options:
        if name not in known:
            field = isinstance(cfg, Acting) and name in (own.name for own in dataclasses.fields(cfg))
            where = f" It is a field of the config: {type(cfg).__module__.rpartition('.')[2]}.Config({name}=…)."
            raise UserError(f"train() has no option {name!r}.{where if field else did_you_mean(name, known)}")
    name, _ = registry.of_config(cfg)
    assert isinstance(cfg, Acting)  # all else was refused
    begun = begin(name, cfg, options, started, trust)
    if isinstance(begun, Result):
        return begun
    return _finish(begun, quiet, Callbacks(on_progress, on_evaluation, on_checkpoint))


def _finish(experiment: Experiment, quiet: bool, callbacks: Callbacks) -> Result:
    experiment.callbacks = callbacks
    result, failure = experiment.run(view.choose(quiet=quiet, json=False))
    if failure is not None:
        raise failure
    if result.stopped_by == "interrupt":
        raise KeyboardInterrupt
    return result


def resume(
    run: str | Path,
    *,
    quiet: bool = False,
    on_progress: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    trust: bool = False,
    **changes: Any,
) -> Result:
    """Go on with a run that was interrupted, as `shoal resume` does. `changes` are options of `train` and fields of the
    algorithm's config that are to be others from now on; `trust` as for `shoal.load`."""
    started = time.monotonic()
    path = Path(directory.named(run, "shoal.resume()"))
    names = {field.name for field in dataclasses.fields(RunOptions)}
    options = {name: value for name, value in changes.items() if name in names}
    values = {name: value for name, value in changes.items() if name not in names}
    begun = go_on(path, options, values, started, trust=trust)
    return _finish(begun, quiet, Callbacks(on_progress, on_evaluation, on_checkpoint))


def begin(
    name: str,
    cfg: Acting,
    options: Mapping[str, Any],
    started: float,
    trust: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Experiment | Result:
    """The run of an algorithm with a config as it was given, and options as they were given, which began to be started
    at `started`. With `resume="auto"` it is the one in its run directory, if there is one: that goes on, or, where it
    has ended and is asked for nothing more, is what it came to. `tell` hears what becomes of data."""
    chosen = RunOptions(**options)
    if chosen.resume == "auto":
        if not chosen.run_dir:
            raise UserError("--resume auto needs --run-dir: the folder of the run that is started or goes on.")
        path = Path(chosen.run_dir)
        if (path / directory.CONFIG).is_file():
            return _begun_before(path, name, cfg, options, started, trust)
    algorithm = registry.load(name)
    cfg = with_dataset(cfg, tell)
    env = describe_task(cfg)
    cfg, env = fit(config.apply_preset(cfg, algorithm.PRESETS, env.kind), env, chosen.runtime)
    return Experiment(name, algorithm, cfg, env, chosen, started)


def _begun_before(
    path: Path, name: str, cfg: Acting, options: Mapping[str, Any], started: float, trust: bool
) -> Experiment | Result:
    recorded = directory.read_config(path)["algorithm"]
    if registry.lasting_name(name) != recorded:
        raise UserError(f"{path} is a run of {registry.short_name(recorded)}, not of {name}: give another --run-dir.")
    changes = {key: value for key, value in options.items() if key not in ("resume", "run_dir")}
    if (ended := finished(path, changes)) is not None:
        return Result.of_summary(ended, path)
    values = {field: config.values(cfg)[field] for field in config.given(cfg)}
    return go_on(path, changes, values, started, trust=trust, named=True)


def go_on(
    path: Path,
    options: Mapping[str, Any],
    values: Mapping[str, Any],
    started: float,
    *,
    trust: bool = False,
    named: bool = False,
) -> Experiment:
    """A run that was interrupted, with these options and fields of its config in place of the recorded ones. Code of a
    run of others needs `trust`, but for the algorithm where the user has `named` it."""
    found = plan(path, options, values, trust=trust, named=named)
    try:
        env = describe_task(found.cfg)
        return Experiment(found.name, found.algorithm, found.cfg, env, found.options, started, found.resumed)
    except BaseException:
        found.resumed.lock.release()
        raise
