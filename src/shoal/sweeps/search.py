"""Which setting is tried next: a grid, random draws, or Optuna's samplers; and Optuna's pruners."""

from __future__ import annotations

import importlib.util
import math
import random
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from shoal.errors import UserError
from shoal.sweeps.spec import Choices, Parameter, Sweep, grid, stepped

PACKAGES = {"cmaes": ("cmaes",), "gp": ("scipy",), "qmc": ("scipy",)}  # that Optuna itself does not bring


class Search(Protocol):
    def again(self, number: int, parameters: Mapping[str, Any]) -> None:
        """A trial that an earlier life of the sweep has begun."""

    def next(self, number: int) -> dict[str, Any] | None:
        """The parameters of a new trial; None when there are enough."""

    def report(self, number: int, step: int, value: float) -> bool:
        """What a trial has come to so far; True when it should be ended early."""

    def tell(self, number: int, value: float | None) -> None:
        """What a trial came to; None for one that failed or was ended early."""


def make_search(sweep: Sweep) -> Search:
    if sweep.settings.sampler in ("grid", "random") and sweep.settings.pruner == "none":
        return Plain(sweep)
    return ByOptuna(sweep)


class Plain:
    """A grid, or random draws that follow from the sampler's seed and the trial's number alone."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._grid = grid(sweep.parameters) if sweep.settings.sampler == "grid" else None

    def again(self, number: int, parameters: Mapping[str, Any]) -> None:
        pass

    def next(self, number: int) -> dict[str, Any] | None:
        settings = self._sweep.settings
        if settings.trials is not None and number >= settings.trials:
            return None
        if self._grid is not None:
            return self._grid[number] if number < len(self._grid) else None
        source = random.Random(f"{settings.sampler_seed}/{number}")
        return {name: draw(parameter, source) for name, parameter in self._sweep.parameters.items()}

    def report(self, number: int, step: int, value: float) -> bool:
        return False

    def tell(self, number: int, value: float | None) -> None:
        pass


def draw(parameter: Parameter, source: random.Random) -> Any:
    if isinstance(parameter, Choices):
        return source.choice(parameter.values)
    if parameter.step is not None:
        return source.choice(stepped(parameter))
    if parameter.log:
        value = math.exp(source.uniform(math.log(parameter.low), math.log(parameter.high)))
        value = min(max(value, parameter.low), parameter.high)
    elif parameter.whole:
        return source.randint(int(parameter.low), int(parameter.high))
    else:
        value = source.uniform(parameter.low, parameter.high)
    return round(value) if parameter.whole else float(f"{value:.6g}")


class ByOptuna:
    """A study in memory: what earlier lives have found is told to it again out of the sweep's own files."""

    def __init__(self, sweep: Sweep) -> None:
        try:
            import optuna
        except ImportError:
            plain = sweep.settings.sampler in ("grid", "random")
            what = f"pruner {sweep.settings.pruner}" if plain else f"sampler {sweep.settings.sampler}"
            raise UserError(f"The {what} needs Optuna; run: pip install 'shoal[sweep]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._sweep = optuna, sweep
        self._plain = Plain(sweep) if sweep.settings.sampler in ("grid", "random") else None
        self._study = optuna.create_study(
            direction="maximize" if sweep.maximize else "minimize", sampler=self._sampler(), pruner=self._pruner()
        )
        self._distributions = {name: self._distribution(each) for name, each in sweep.parameters.items()}
        self._trials: dict[int, Any] = {}

    def again(self, number: int, parameters: Mapping[str, Any]) -> None:
        stored = {name: _hashable(value) for name, value in parameters.items()}
        self._study.enqueue_trial(stored)
        self._trials[number] = self._study.ask(self._distributions)

    def next(self, number: int) -> dict[str, Any] | None:
        trials = self._sweep.settings.trials
        if trials is not None and number >= trials:
            return None
        if self._plain is not None:
            parameters = self._plain.next(number)
            if parameters is not None:
                self.again(number, parameters)
            return parameters
        trial = self._trials[number] = self._study.ask(self._distributions)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in trial.params.items()}

    def report(self, number: int, step: int, value: float) -> bool:
        self._trials[number].report(value, step)
        return bool(self._trials[number].should_prune())

    def tell(self, number: int, value: float | None) -> None:
        trial = self._trials.pop(number, None)
        if trial is None:
            return
        state = self._optuna.trial.TrialState
        if value is None:
            self._study.tell(trial, state=state.PRUNED if trial.should_prune() else state.FAIL)
        else:
            self._study.tell(trial, value)

    def _sampler(self) -> Any:
        samplers, seed = self._optuna.samplers, self._sweep.settings.sampler_seed
        names = {"tpe": "TPESampler", "qmc": "QMCSampler", "cmaes": "CmaEsSampler", "gp": "GPSampler"}
        chosen = self._sweep.settings.sampler
        missing = [name for name in PACKAGES.get(chosen, ()) if importlib.util.find_spec(name) is None]
        if missing:  # Optuna would say so after the first trials
            raise UserError(f"The sampler {chosen} needs a package more; run: pip install {' '.join(missing)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some are called experimental
            return getattr(samplers, names.get(chosen, "RandomSampler"))(seed=seed)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        made = {
            "none": pruners.NopPruner,
            "median": pruners.MedianPruner,
            "halving": pruners.SuccessiveHalvingPruner,
            "hyperband": pruners.HyperbandPruner,
        }
        return made[self._sweep.settings.pruner]()

    def _distribution(self, parameter: Parameter) -> Any:
        kinds = self._optuna.distributions
        if isinstance(parameter, Choices):
            return kinds.CategoricalDistribution([_hashable(value) for value in parameter.values])
        low, high = parameter.low, parameter.high
        if parameter.whole:
            step = 1 if parameter.log or parameter.step is None else int(parameter.step)
            return kinds.IntDistribution(int(low), int(high), log=parameter.log, step=step)
        return kinds.FloatDistribution(float(low), float(high), log=parameter.log, step=parameter.step)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
