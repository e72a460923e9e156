"""What a sweep is: the options all runs share, the parameters that differ, seeds, and what is to be best.

A file for `shoal train --config` with a table [sweep] below it, and [sweep.parameters] in that.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.arguments.config_files import ALGORITHM, ConfigFile, read_file
from shoal.config import Count, Seed, validate, validate_fields
from shoal.errors import UserError, did_you_mean
from shoal.runs import registry
from shoal.runs.options import Result, RunOptions

SWEEP, PARAMETERS = "sweep", "parameters"
OWN = ("seed", "run_dir", "resume", "json", ALGORITHM)  # set by the sweep for each run
SMALLER_IS_BETTER = ("seconds_to_target", "wall_seconds", "train_seconds", "first_update_seconds")
METRICS = [field.name for field in dataclasses.fields(Result) if field.type in ("int", "float", "float | None")]


@dataclass(frozen=True)
class Choices:
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False  # the option takes whole numbers


Parameter = Choices | Range


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """How parameters are tried."""

    sampler: str = "grid"
    """grid, random, or one of Optuna's: tpe, qmc, cmaes, gp."""
    pruner: str = "none"
    """Ends trials early that fall behind: median, halving, hyperband (Optuna's), or none."""
    trials: Count | None = None
    """Settings to be tried; a grid has as many as it has, others need this."""
    seeds: int | tuple[int, ...] = 1
    """Runs of each setting: seeds 0, 1, …, or a list of them."""
    metric: str = "eval_return"
    """A number of a run's result; the mean over seeds counts."""
    direction: str = "auto"
    """maximize or minimize; auto: seconds are minimized, everything else maximized."""
    parallel: Count | None = None
    """Runs at a time; default: half the cores, or all with --runtime inline."""
    retries: int = 0
    """How many times a run that has failed is started again."""
    sampler_seed: Seed = 0
    """Of the sampler."""
    folder: str | None = None
    """Of the sweep; default: sweeps/ and the file's name."""


@dataclass(frozen=True)
class Sweep:
    name: str
    algorithm: str
    base: Mapping[str, Any]  # options that all runs share
    parameters: Mapping[str, Parameter]
    settings: SweepSettings

    @property
    def seeds(self) -> tuple[int, ...]:
        seeds = self.settings.seeds
        return tuple(range(seeds)) if isinstance(seeds, int) else seeds

    @property
    def maximize(self) -> bool:
        chosen = self.settings.direction
        return self.settings.metric not in SMALLER_IS_BETTER if chosen == "auto" else chosen == "maximize"

    @property
    def folder(self) -> Path:
        return Path(self.settings.folder) if self.settings.folder is not None else Path("sweeps") / self.name

    def options(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Of the runs of one setting."""
        return {ALGORITHM: self.algorithm, **self.base, **parameters}

    def identity(self) -> dict[str, Any]:
        """What may not change when a sweep goes on: everything but how many trials, at a time, and retries."""
        settings = dataclasses.asdict(self.settings)
        kept = {key: settings[key] for key in ("sampler", "metric", "sampler_seed")}
        written = {name: dataclasses.asdict(parameter) for name, parameter in self.parameters.items()}
        return {ALGORITHM: self.algorithm, "base": dict(self.base), PARAMETERS: written, "seeds": self.seeds, **kept}


def read_sweep(source: Path | Mapping[str, Any], changes: Mapping[str, Any]) -> Sweep:
    """A sweep out of a file or a dict of the same shape; `changes` take the place of settings in [sweep]."""
    where = str(source) if isinstance(source, Path) else "The sweep"
    values = dict(read_file(source) if isinstance(source, Path) else source)
    table = values.pop(SWEEP, None)
    if not isinstance(table, Mapping) or not isinstance(table.get(PARAMETERS), Mapping) or not table[PARAMETERS]:
        raise UserError(
            f"{where} has no [sweep.parameters]: give at least one option with its values, such as "
            "learning_rate = [1e-4, 1e-3] or {low = 1e-5, high = 1e-2, log = true}."
        )
    settings = _settings(where, {key: value for key, value in table.items() if key != PARAMETERS} | dict(changes))
    file = ConfigFile(Path(where), values)
    algorithm = file.named_algorithm()
    for name in OWN:
        if (name in values and name != ALGORITHM) or name in table[PARAMETERS]:
            hint = "give seeds in [sweep]" if name == "seed" else "a sweep sets it for each run"
            raise UserError(f"{where}: {name} cannot be set here: {hint}.")
    owners: list[type[Any]] = [RunOptions, registry.load(algorithm).Config]
    file.check(owners)
    name = source.stem if isinstance(source, Path) else "sweep"
    base = {key.replace("-", "_"): value for key, value in values.items() if key != ALGORITHM}
    parameters = {key.replace("-", "_"): _parameter(where, key, given) for key, given in table[PARAMETERS].items()}
    made = Sweep(name, algorithm, base, _typed(parameters, owners), settings)
    _check(where, made, owners)
    return made


def _settings(where: str, table: Mapping[str, Any]) -> SweepSettings:
    known = [field.name for field in dataclasses.fields(SweepSettings)]
    for key in table:
        if key not in known:
            raise UserError(
                f"{where}: [sweep] has no {key}.{did_you_mean(key, known) or ' It has ' + ', '.join(known) + '.'}"
            )
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    settings = SweepSettings(**values)
    try:
        validate(settings)
    except UserError as error:
        raise UserError(f"{where}: {str(error).replace('--', '').replace('-', '_', 1)}") from None
    for name, given, choices in (
        ("sampler", settings.sampler, SAMPLERS),
        ("pruner", settings.pruner, PRUNERS),
        ("direction", settings.direction, ("auto", "maximize", "minimize")),
        ("metric", settings.metric, METRICS),
    ):
        if given not in choices:
            raise UserError(
                f"{where}: {name} {given!r} is not known: choose one of {', '.join(choices)}."
                f"{did_you_mean(str(given), choices)}"
            )
    seeds = (settings.seeds,) if isinstance(settings.seeds, int) else settings.seeds
    least = 1 if isinstance(settings.seeds, int) else 0
    if not seeds or min(seeds) < least or len(set(seeds)) != len(seeds):
        raise UserError(f"{where}: seeds must be their number, or a list of different whole numbers of 0 up.")
    if settings.retries < 0:
        raise UserError(f"{where}: retries {settings.retries} is too small: give at least 0.")
    return settings


MOST_COMBINATIONS = 100_000  # of a grid
SAMPLERS = ("grid", "random", "tpe", "qmc", "cmaes", "gp")
PRUNERS = ("none", "median", "halving", "hyperband")


def _parameter(where: str, name: str, given: Any) -> Parameter:
    if isinstance(given, list | tuple) and given:
        return Choices(tuple(given))
    if isinstance(given, Mapping) and {"low", "high"} <= set(given) <= {"low", "high", "log", "step"}:
        low, high, step = given["low"], given["high"], given.get("step")
        numbers = [value for value in (low, high, step) if value is not None]
        if all(map(_is_finite, numbers)) and low < high:
            log = given.get("log", False)
            if isinstance(log, bool) and not (log and (low <= 0 or step is not None)) and (step is None or step > 0):
                return Range(low, high, log, step)
    raise UserError(
        f"{where}: the parameter {name} must be a list of values, or {{low = …, high = …}} with low below high, and "
        "log = true (above 0) or step = … if wanted."
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _typed(parameters: Mapping[str, Parameter], owners: Sequence[type[Any]]) -> dict[str, Parameter]:
    """Ranges of options that take whole numbers give whole numbers."""
    from shoal.arguments.words import options_of

    kinds = {found.field: found.kind for owner in owners for found in options_of(owner)}
    return {
        name: dataclasses.replace(each, whole=kinds.get(name) is int) if isinstance(each, Range) else each
        for name, each in parameters.items()
    }


def _check(where: str, made: Sweep, owners: Sequence[type[Any]]) -> None:
    """Every value that could be tried is one that its option takes."""
    for name, parameter in made.parameters.items():
        if name in made.base:
            raise UserError(f"{where}: {name} is given for all runs and among [sweep.parameters]: leave one out.")
        ends = parameter.values if isinstance(parameter, Choices) else (parameter.low, parameter.high)
        for value in ends:
            ConfigFile(Path(where), {name: list(value) if isinstance(value, tuple) else value}).check(owners)
            _check_value(where, name, value, owners)
    settings = made.settings
    if settings.sampler == "grid":
        if (count := _combinations(made.parameters)) > MOST_COMBINATIONS:
            raise UserError(
                f"{where}: this grid has {count:.3g} combinations: give larger steps, fewer values or another sampler."
            )
        if ranged := [name for name, each in made.parameters.items() if isinstance(each, Range) and each.step is None]:
            raise UserError(f"{where}: a grid needs values of {ranged[0]}: give a list or a step, or another sampler.")
    elif settings.trials is None:
        raise UserError(f"{where}: the sampler {settings.sampler} needs trials = N in [sweep].")


def _check_value(where: str, name: str, value: Any, owners: Sequence[type[Any]]) -> None:
    """Limits that its option has; whether it is of the right kind is the file's to say."""
    for owner in owners:
        if name in {field.name for field in dataclasses.fields(owner)}:
            try:
                validate_fields(owner(**{name: value}))
            except UserError as error:
                raise UserError(f"{where}: {error}") from None


def _combinations(parameters: Mapping[str, Parameter]) -> float:
    return math.prod(
        len(each.values) if isinstance(each, Choices) else (each.high - each.low) / (each.step or math.inf) + 1
        for each in parameters.values()
    )


def grid(parameters: Mapping[str, Parameter]) -> list[dict[str, Any]]:
    """Every combination, the last parameter changing fastest."""
    values = [each.values if isinstance(each, Choices) else stepped(each) for each in parameters.values()]
    return [dict(zip(parameters, combination)) for combination in itertools.product(*values)]


def stepped(parameter: Range) -> tuple[float, ...]:
    assert parameter.step is not None
    count = int((parameter.high - parameter.low) / parameter.step + 1e-9) + 1
    values = [parameter.low + index * parameter.step for index in range(count)]
    return tuple(round(value) if parameter.whole else float(f"{value:.12g}") for value in values)
