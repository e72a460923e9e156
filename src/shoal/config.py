"""Configs: one flat dataclass per algorithm, presets by kind of environment, and one sentence for a bad value.

A config's values come from three places, the later ones winning: the dataclass's defaults, the preset, what the user
gave. `remember_given` is what makes the third known when a config is written in Python.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from shoal.errors import UserError

C = TypeVar("C")
AUTO, NONE = "auto", "none"

# What a field of one of these names may be at the least, in every algorithm.
AT_LEAST: dict[str, float] = {
    "actors": 1,
    "envs_per_actor": 1,
    "unroll": 1,
    "queue": 1,
    "batch": 1,
    "publish_every": 1,
    "learners": 1,
    "inference_servers": 1,
    "inference_batch": 0,
    "epochs": 1,
    "minibatches": 1,
    "target_every": 1,
    "capacity": 1,
    "n": 1,
    "learning_starts": 1,
    "samples_per_insert": 0,
    "priority_exponent": 0,
    "importance_exponent": 0,
    "ladder_exponent": 0,
    "quantiles": 0,
    "kappa": 0,
    "stream": 0,
    "inference_wait": 0,
    "burn_in": 0,
    "length": 1,
    "period": 1,
    "rows": 1,
    "reduce": 1,
    "shards": 1,
    "max_staleness": 0,
    "eval_episodes": 1,
    "learning_rate": 0,
    "anneal_updates": 0,
    "anneal_steps": 0,
    "clip": 0,
    "value_clip": 0,
    "target_kl": 0,
    "epsilon": 0,
    "reward_clip": 0,
    "atoms": 2,
    "noise": 0,
    "noise_smallest": 0,
    "slope_clip": 0,
    "saturation_cost": 0,
    "actor_rate": 0,
    "critic_rate": 0,
    "grad_clip": 0,
    "lstm": 0,
    "seed": 0,
    "max_failures": 0,
    "eval_every": 0,
    "stop_steps": 1,
    "stop_updates": 1,
    "stop_seconds": 0,
}
BETWEEN_0_AND_1 = ("gamma", "lambda_", "discount", "decay", "mix", "target_rate", "ladder_base")
ABOVE_0 = ("reward_scale",)
WIDTHS = ("hidden", "actor_hidden", "critic_hidden")  # of layers
# Only where nothing else would refuse the value before processes are started; a Literal type needs no entry here.
CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": ("adam", "rmsprop"),
    "inference": ("local", "central"),
}


def remember_given(cls: type[C]) -> type[C]:
    """Put on a config's dataclass: its objects know which fields were given, so that a preset sets only the others."""
    init: Any = cls.__init__
    every = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]

    @functools.wraps(init)
    def remember(self: Any, **values: Any) -> None:
        init(self, **values)
        names = set(values)
        if names == set(every):  # dataclasses.replace gives all of them: count those that differ from their defaults
            names = {name for name, value in values.items() if value != every[name].default}
        object.__setattr__(self, "_given", frozenset(names))

    cls.__init__ = remember  # type: ignore[method-assign]
    return cls


def given(config: Any) -> frozenset[str]:
    """The fields that were given; for a dataclass without `remember_given`, those that differ from their defaults."""
    fields = dataclasses.fields(config)
    differing = frozenset(field.name for field in fields if getattr(config, field.name) != field.default)
    return getattr(config, "_given", differing)


def apply_preset(config: C, presets: Mapping[str, Mapping[str, Any]], kind: str) -> C:
    """The config with the preset's values in the fields that were not given, and the preset's name in `preset`.

    `auto` is the preset of the environment's kind, or none where the algorithm has none for it.
    """
    asked = getattr(config, "preset", AUTO)
    name = (kind if kind in presets else NONE) if asked == AUTO else asked
    if name not in presets and name != NONE:
        raise UserError(_unknown("--preset", name, [*presets, AUTO, NONE]))
    kept = given(config)
    changes = {key: value for key, value in presets.get(name, {}).items() if key not in kept}
    if hasattr(config, "preset"):
        changes["preset"] = name
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def preset_line(config: Any, presets: Mapping[str, Mapping[str, Any]], kind: str) -> str:
    """What the preset of a finished config has set, on one line."""
    name = getattr(config, "preset", NONE)
    settings = presets.get(name, {})
    in_force = [f"{key}={value}" for key, value in settings.items() if getattr(config, key) == value]
    overridden = [key for key, value in settings.items() if getattr(config, key) != value]
    line = f"preset {name} (a {kind} environment)"
    line += ": " + ", ".join(in_force) if in_force else ""
    return line + (f"; yours: {', '.join(f'{key}={getattr(config, key)}' for key in overridden)}" if overridden else "")


def validate(config: Any) -> None:
    """One sentence that names the option for the first value that cannot be right."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if value is None:
            continue
        shown = f"{option(name)} {value}"
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{shown} is not a finite number: give one.")
        if name in AT_LEAST and value < AT_LEAST[name]:
            raise UserError(f"{shown} is too small: give at least {AT_LEAST[name]}.")
        if name in BETWEEN_0_AND_1 and not 0 <= value <= 1:
            raise UserError(f"{shown} is out of range: give a number from 0 to 1.")
        if name in ABOVE_0 and value <= 0:
            raise UserError(f"{shown} is too small: give a number above 0.")
        if name in WIDTHS and min(value, default=1) < 1:
            raise UserError(
                f"{option(name)} {' '.join(map(str, value))} has a layer without a unit: give widths of 1 up."
            )
        choices = _choices(hints.get(name)) or CHOICES.get(name)
        if choices and value not in choices:
            raise UserError(_unknown(option(name), value, choices))
    _check_sizes(config)


def _check_sizes(config: Any) -> None:
    """One sentence where two sizes do not fit together."""
    capacity = getattr(config, "capacity", None)
    for name in ("batch", "learning_starts"):
        if capacity is not None and capacity < getattr(config, name, 0):
            raise UserError(
                f"--capacity {capacity} can never hold {option(name)} {getattr(config, name)} items and the run would "
                "wait forever: give a larger capacity, or less of the other."
            )
    queue, batch = getattr(config, "queue", None), getattr(config, "batch", None)
    if queue is not None and batch is not None and queue < batch:
        raise UserError(
            f"--queue {queue} can never hold a batch of {batch} items and the run would wait forever: "
            f"give --queue {batch} or more, or a smaller --batch."
        )


def from_record(cls: type[C], values: Mapping[str, Any]) -> C:
    """A config out of what JSON has made of it: fields this version does not know are left out, lists are tuples."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return cls(**{name: value for name, value in known.items() if name in names})


def option(name: str) -> str:
    """A field's name as it is typed on the command line."""
    return "--" + name.rstrip("_").replace("_", "-")


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """ " Did you mean …?", or nothing when nothing is near."""
    by_lower_case = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    return f" Did you mean {by_lower_case[near[0]]}?" if near else ""


def _unknown(name: str, value: Any, choices: Iterable[str]) -> str:
    return f"{name} {value} is not known: choose one of {', '.join(choices)}.{did_you_mean(str(value), choices)}"


def _choices(hint: Any) -> tuple[str, ...] | None:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else None
