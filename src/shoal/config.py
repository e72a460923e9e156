"""Configs: one flat dataclass per algorithm, presets by kind of environment, and one sentence for a bad value.

A config's values come from three places, the later ones winning: the dataclass's defaults, the preset, what the user
gave. `config` makes such a dataclass and remembers what was given. What a field may be stands in its type: `Count`,
`Share`, `Widths`, or any `Annotated` with the limits below.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from shoal.errors import UserError

C = TypeVar("C")
AUTO, NONE = "auto", "none"


# ---- what a field may be ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtLeast:
    least: float

    def fault(self, value: Any) -> str | None:
        return None if value >= self.least else f"is too small: give at least {self.least:g}."


@dataclass(frozen=True)
class Above:
    bound: float

    def fault(self, value: Any) -> str | None:
        return None if value > self.bound else f"is too small: give a number above {self.bound:g}."


@dataclass(frozen=True)
class Between:
    low: float
    high: float

    def fault(self, value: Any) -> str | None:
        if self.low <= value <= self.high:
            return None
        return f"is out of range: give a number from {self.low:g} to {self.high:g}."


@dataclass(frozen=True)
class LayerWidths:
    def fault(self, value: Any) -> str | None:
        return None if min(value, default=1) >= 1 else "has a layer without a unit: give widths of 1 up."


Count = Annotated[int, AtLeast(1)]
Whole = Annotated[int, AtLeast(0)]
Amount = Annotated[float, AtLeast(0)]
Positive = Annotated[float, Above(0)]
Share = Annotated[float, Between(0, 1)]
Widths = Annotated[tuple[int, ...], LayerWidths()]
Limit = AtLeast | Above | Between | LayerWidths


# ---- what was given --------------------------------------------------------------------------------------------------


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(**defaults: Any) -> Callable[[type[C]], type[C]]:
    """Make a config's dataclass. `defaults` replace those of inherited fields.

    Its objects know which fields were given, so that a preset sets only the others.
    """

    def make(cls: type[C]) -> type[C]:
        made: Any = dataclass(frozen=True, kw_only=True)(cls)
        fields = made.__dataclass_fields__
        for name, value in defaults.items():
            fields[name] = copy.copy(fields[name])  # of the group that it was inherited from
            fields[name].default = value
        init = made.__init__

        @functools.wraps(init)
        def remember(self: Any, **values: Any) -> None:
            init(self, **(defaults | values))
            names = set(values)
            if names == set(fields):  # dataclasses.replace gives all of them: count those that are not the defaults
                names = {name for name, value in values.items() if value != fields[name].default}
            object.__setattr__(self, "_given", frozenset(names))

        made.__init__ = remember
        return typing.cast(type[C], made)

    return make


def given(config: Any) -> frozenset[str]:
    """The fields that were given; for a plain dataclass, those that differ from their defaults."""
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
    line = f"preset {name} ({'an' if kind[:1] in 'aeiou' else 'a'} {kind} environment)"
    line += ": " + ", ".join(in_force) if in_force else ""
    return line + (f"; yours: {', '.join(f'{key}={getattr(config, key)}' for key in overridden)}" if overridden else "")


def validate(config: Any) -> None:
    """One sentence that names the option for the first value that cannot be right."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if value is None:
            continue
        shown = f"{option(field.name)} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{shown} is not a finite number: give one.")
        for limit in _limits(hint):
            if (fault := limit.fault(value)) is not None:
                raise UserError(f"{shown} {fault}")
        if (choices := _choices(hint)) and value not in choices:
            raise UserError(_unknown(option(field.name), value, choices))
    _check_sizes(config)


def _limits(hint: Any) -> Iterable[Limit]:
    """Those of a type, also where it is one of several (`Count | None`)."""
    for part in (hint, *typing.get_args(hint)):
        yield from (note for note in getattr(part, "__metadata__", ()) if isinstance(note, Limit))


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
