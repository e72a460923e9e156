"""`shoal.train` and `shoal.resume`: an experiment from what a user gives in Python."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from shoal import config
from shoal.arguments import config_files
from shoal.errors import UserError
from shoal.experiment import view
from shoal.experiment.environments import describe_env
from shoal.experiment.experiment import Experiment
from shoal.experiment.listeners import Callback, Callbacks
from shoal.experiment.resuming import Plan, plan
from shoal.runs import directory, registry
from shoal.runs.options import Result, RunOptions


def train(
    cfg: Any,
    *,
    quiet: bool = False,
    on_progress: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    **options: Any,
) -> Result:
    """Train with an algorithm's config, or a config file's path, as `shoal train` does, until a stop rule is met.

    `options` are those of the command line: runtime, ray_address, seed, stop_return, stop_steps, stop_updates,
    stop_seconds, run_dir, max_failures, hang_seconds, checkpoint_every, checkpoint_updates, checkpoint_replay,
    keep, restore, restore_partial, freeze, eval_every, eval_episodes, record_every, record_format, log. Fields of `cfg`
    that were not given are set by the preset for the environment's kind. Callbacks are given a dict, of numbers or with
    a path, while the run goes on, and end it by returning True (`shoal.experiment.listeners`). Raises `UserError` for
    what cannot work and `RunFailed` when the run broke; Ctrl-C ends the run in order before it is raised here.
    """
    started = time.monotonic()
    if isinstance(cfg, os.PathLike) or (isinstance(cfg, str) and cfg.endswith(".toml")):
        cfg, options = config_files.load(Path(cfg), options)
    known = [field.name for field in dataclasses.fields(RunOptions)]
    for name in options:
        if name not in known:
            raise UserError(f"train() has no option {name!r}.{config.did_you_mean(name, known)}")
    name, algorithm = registry.of_config(cfg)
    env = describe_env(cfg)
    cfg = config.apply_preset(cfg, algorithm.PRESETS, env.kind)
    callbacks = Callbacks(on_progress, on_evaluation, on_checkpoint)
    return _finish(Experiment(name, algorithm, cfg, env, RunOptions(**options), started), quiet, callbacks)


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
    **changes: Any,
) -> Result:
    """Go on with a run that was interrupted, as `shoal resume` does. `changes` are options of `train` and fields of the
    algorithm's config that are to be others from now on."""
    started = time.monotonic()
    path = Path(directory.named(run, "shoal.resume()"))
    names = {field.name for field in dataclasses.fields(RunOptions)}
    options = {name: value for name, value in changes.items() if name in names}
    found = plan(path, options, {name: value for name, value in changes.items() if name not in names})
    callbacks = Callbacks(on_progress, on_evaluation, on_checkpoint)
    return _finish(resumed_experiment(found, started), quiet, callbacks)


def resumed_experiment(found: Plan, started: float) -> Experiment:
    try:
        env = describe_env(found.cfg)
        return Experiment(found.name, found.algorithm, found.cfg, env, found.options, started, found.resumed)
    except BaseException:
        found.resumed.lock.release()
        raise
