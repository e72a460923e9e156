"""Configs: one flat dataclass per algorithm, presets by kind of environment, and one sentence for a bad value.

A config's values come from three places, the later ones winning: the dataclass's defaults, the preset, what the user
gave. `config` makes such a dataclass and remembers what was given. What a field may be stands in its type: `Count`,
`Share`, `Widths`, or any `Annotated` with the limits below. Which values of several fields fit together is said by a
`Constraint` beside one of them. What a field is for stands in the string below it, which editors show, `--help` prints
and the class's own docstring lists.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import itertools
import math
import numbers
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, dataclass_transform

from shoal.errors import UserError, did_you_mean
from shoal.factories import Factory as Factory

C = TypeVar("C")
P = TypeVar("P", bound="HasPreset")
AUTO, NO_PRESET = "auto", "none"
LARGEST = 2**63 - 1  # whole numbers end up in arrays


# ---- what a field may be ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtLeast:
    least: float

    def fault(self, value: Any) -> str | None:
        return None if value >= self.least else f"is too small: give at least {self.least:.12g}."


@dataclass(frozen=True)
class Above:
    bound: float

    def fault(self, value: Any) -> str | None:
        return None if value > self.bound else f"is too small: give a number above {self.bound:.12g}."


@dataclass(frozen=True)
class Between:
    low: float
    high: float

    def fault(self, value: Any) -> str | None:
        if self.low <= value <= self.high:
            return None
        return f"is out of range: give a number from {self.low:.12g} to {self.high:.12g}."


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
NamedValues = dict[str, Any]
GpuShare = Annotated[float, Between(1e-4, 1)]  # Ray counts in steps of 1e-4
Seconds = Annotated[float, Between(0, 1e6)]
Threads = Annotated[int, Between(1, 1024)]
Episodes = Annotated[int, Between(1, 1_000_000)]  # of one evaluation
Seed = Annotated[int, Between(0, 2**32 - 1)]  # what every generator takes
Limit = AtLeast | Above | Between | LayerWidths


@dataclass(frozen=True)
class Enough:
    """Beside the limits of a field that says how much of something there is: enough to see whether it works."""

    most: float


class Constraint(Generic[C]):
    """A method that raises a `UserError` where values of several fields do not fit together. `validate` calls those of
    all groups that a config is composed of."""

    def __init__(self, check: Callable[[C], None]) -> None:
        self.check = check


# ---- what was given --------------------------------------------------------------------------------------------------


@dataclass
class _Given:
    """A parameter of every config that is no field of it. `dataclasses.replace` hands it on from the old object to the
    new one, behind what is changed and before everything else."""

    _given: dataclasses.InitVar[frozenset[str]] = frozenset()


class HasPreset(Protocol):
    """A config that begins with a preset."""

    @property
    def preset(self) -> str: ...


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(**defaults: Any) -> Callable[[type[C]], type[C]]:
    """Make a config's dataclass. `defaults` replace those of inherited fields.

    Its objects know which fields were given, so that a preset sets only the others.
    """

    def make(cls: type[C]) -> type[C]:
        own = cls.__dict__.get("__doc__")
        made: Any = dataclass(frozen=True, kw_only=True)(cls)
        fields = {field.name: field for field in dataclasses.fields(made)}
        for name, value in defaults.items():
            fields[name] = copy.copy(fields[name])  # of the group that it was inherited from
            fields[name].default = value
        made.__dataclass_fields__ = _Given.__dataclass_fields__ | fields
        init = made.__init__

        @functools.wraps(init)
        def remember(self: Any, **values: Any) -> None:
            given = frozenset(itertools.takewhile(lambda name: name != "_given", values))
            given |= values.pop("_given", frozenset())
            for name in values.keys() - fields.keys():
                raise UserError(f"{made.__module__}.{made.__qualname__} has no {name!r}.{did_you_mean(name, fields)}")
            values = {name: plain(value) for name, value in values.items()}
            init(self, **(defaults | values))
            object.__setattr__(self, "_given", given)

        made.__init__ = remember
        made.__doc__ = FieldList(own)
        return typing.cast(type[C], made)

    return make


def plain(value: Any) -> Any:
    """What a field holds: tuples where lists or arrays were given, Python's numbers where numpy's were."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def values(config: object) -> dict[str, Any]:
    """Of all fields, by name."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]


def given(config: object) -> frozenset[str]:
    """The fields that were given."""
    names: frozenset[str] = vars(config)["_given"]
    return names


def apply_preset(config: P, presets: Mapping[str, Mapping[str, Any]], kind: str) -> P:
    """The config with the preset's values in the fields that were not given, and the preset's name in `preset`.

    `auto` is the preset of the environment's kind, or none where the algorithm has none for it.
    """
    name = config.preset
    if name == AUTO:
        name = kind if kind in presets else NO_PRESET
    if name not in presets and name != NO_PRESET:
        raise UserError(unknown("--preset", name, [*presets, AUTO, NO_PRESET]))
    kept = given(config)
    changes = {key: value for key, value in presets.get(name, {}).items() if key not in kept}
    return replace(config, _given=kept, **changes, preset=name)


def replace(config: C, **changes: Any) -> C:
    """`dataclasses.replace`, also where only some groups of a config are known."""
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def small(config: C) -> C:
    """The config with less of everything of which there may be less, for a trial."""
    enough: dict[str, float] = {}
    for group in reversed(type(config).__mro__):
        for name, hint in typing.get_type_hints(group, include_extras=True).items():
            for note in getattr(hint, "__metadata__", ()):
                if isinstance(note, Enough):
                    enough[name] = note.most
    return replace(config, **{name: min(most, values(config)[name]) for name, most in enough.items()})


def preset_line(config: HasPreset, presets: Mapping[str, Mapping[str, Any]], kind: str) -> str:
    """What the preset of a finished config has set, on one line."""
    name = config.preset
    settings = presets.get(name, {})
    in_force = [f"{key}={value}" for key, value in settings.items() if getattr(config, key) == value]
    overridden = [key for key, value in settings.items() if key in given(config) and getattr(config, key) != value]
    line = f"preset {name} ({'an' if kind[:1] in 'aeiou' else 'a'} {kind} environment)"
    line += ": " + ", ".join(in_force) if in_force else ""
    return line + (f"; yours: {', '.join(f'{key}={getattr(config, key)}' for key in overridden)}" if overridden else "")


def validate(config: Any) -> None:
    """One sentence that names the option for the first value that cannot be right."""
    validate_fields(config)
    for group in reversed(type(config).__mro__):
        for part in vars(group).values():
            if isinstance(part, Constraint):
                part.check(config)


def validate_fields(config: Any, but: Iterable[str] = ()) -> None:
    """Each by itself: what can be judged before a preset has set others."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        if field.name in but:
            continue
        value, hint = getattr(config, field.name), hints[field.name]
        shown = f"{option(field.name)} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        if (wanted := _wanted(hint, value)) is not None:
            raise UserError(f"{option(field.name)} {value!r} is no such value: give {wanted}.")
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{shown} is not a finite number: give one.")
        parts = value if isinstance(value, tuple) else (value,)
        for limit in () if isinstance(value, str) else _limits(hint):  # a word beside numbers
            if (fault := limit.fault(value)) is not None:
                raise UserError(f"{shown} {fault}")
        if any(isinstance(part, int) and abs(part) > LARGEST for part in parts):
            raise UserError(f"{shown} is too large: give at most {LARGEST}.")
        if (choices := _choices(hint)) and value not in choices:
            raise UserError(unknown(option(field.name), value, choices))


def _limits(hint: Any) -> Iterable[Limit]:
    """Those of a type, also where it is one of several (`Count | None`)."""
    for part in (hint, *typing.get_args(hint)):
        yield from (note for note in getattr(part, "__metadata__", ()) if isinstance(note, Limit))


def _wanted(hint: Any, value: Any) -> str | None:
    """What a field of this type takes, where the value is something else."""
    hint = plain_type(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        wanted = [_wanted_of_several(part, value) for part in typing.get_args(hint)]
        return None if None in wanted else " or ".join(typing.cast(list[str], wanted))
    if hint is type(None):
        return None if value is None else "None"
    if typing.get_origin(hint) is tuple:
        fits = isinstance(value, tuple) and all(_wanted(typing.get_args(hint)[0], part) is None for part in value)
        return None if fits else "whole numbers"
    if hint is str and value == "":
        return "a name"
    for kind, accepted, wanted_words in _TYPES:
        if hint is kind or typing.get_origin(hint) is kind:
            truth = isinstance(value, bool) and kind is not bool
            return None if isinstance(value, accepted) and not truth else wanted_words
    return None


def _wanted_of_several(hint: Any, value: Any) -> str | None:
    """The same for one of several types, where the words of a choice stand beside others."""
    if (choices := _choices(hint)) is None:
        return _wanted(hint, value)
    return None if value in choices else " or ".join(choices)


_TYPES: tuple[tuple[Any, Any, str], ...] = (  # numpy's numbers are numbers, truth values are not
    (bool, bool, "True or False"),
    (int, numbers.Integral, "a whole number"),
    (float, numbers.Real, "a number"),
    (str, str, "a name"),
    (Callable, Callable, "a function or class"),
    (dict, Mapping, "values by name"),
)


def plain_type(hint: Any) -> Any:
    """A type without its limits."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def from_record(cls: type[C], values: Mapping[str, Any]) -> C:
    """A config out of what JSON has made of it: lists are tuples; fields this version does not know are left out, and
    so is a null in a field that has a word for it now; any other null is as wrong as it was."""
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {name: value for name, value in values.items() if name in names}
    return cls(
        **{name: plain(value) for name, value in known.items() if value is not None or not _has_a_word(hints[name])}
    )


def _has_a_word(hint: Any) -> bool:
    """Whether words of a choice stand beside numbers, as "auto" does: None meant the same before."""
    parts = typing.get_args(hint)
    return type(None) not in parts and any(typing.get_origin(part) is typing.Literal for part in parts)


def option(name: str) -> str:
    """A field's name as it is typed on the command line; one of several values by name is typed at a time."""
    return "--" + name.rstrip("_").replace("_", "-").replace("env-options", "env-option")


def unknown(name: str, value: Any, choices: Iterable[str]) -> str:
    return f"{name} {value} is not known: choose one of {', '.join(choices)}.{did_you_mean(str(value), choices)}"


def _choices(hint: Any) -> tuple[str, ...] | None:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else None


# ---- what is said of fields ------------------------------------------------------------------------------------------


def field_texts(cls: type[Any]) -> dict[str, str]:
    """What each field is for: the string below its declaration."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= {name: text for name, text in _declared_texts(base).items() if text}
    return found


@functools.cache
def _declared_texts(cls: type[Any]) -> dict[str, str]:
    if not dataclasses.is_dataclass(cls):
        return {}
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # typed into a console: nothing to read
        return {}
    found = {}
    for pair in itertools.pairwise(ast.parse(source).body[0].body):  # type: ignore[attr-defined]
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


class FieldList:
    """A config's docstring: its own, and its fields. Made when somebody reads it, since sources have to be read."""

    def __init__(self, own: str | None) -> None:
        self._own = own

    def __get__(self, instance: object, cls: type[Any]) -> str:
        texts = field_texts(cls)
        lines = [
            f"    {field.name}: {texts.get(field.name, '')} [{field.default}]" for field in dataclasses.fields(cls)
        ]
        own = self._own or f"What is the algorithm's own ({cls.__module__.rpartition('.')[2]})."
        return "\n".join([own, "", *lines])
