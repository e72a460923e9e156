"""From typed words to the fields of dataclasses. What cannot be understood is one sentence that names the option."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from shoal.config import field_texts, option, plain_type, unknown
from shoal.errors import UserError, did_you_mean

AUTOMATIC = 10_000  # actors that `--actors auto` stops at
HELP = ("-h", "--help")
SYNONYMS = {  # what other tools call it; the first that a command has is suggested
    "lr": ("learning_rate", "actor_rate"),
    "learning_rate": ("actor_rate",),
    "discount": ("gamma",),
    "gae_lambda": ("lambda_",),
    "batch_size": ("batch",),
    "buffer_size": ("capacity", "queue"),
    "replay_size": ("capacity", "queue"),
    "memory": ("capacity", "queue"),
    "rollout_length": ("unroll", "length"),
    "n_steps": ("unroll", "n"),
    "num_steps": ("unroll", "n"),
    "total_timesteps": ("stop_steps",),
    "timesteps": ("stop_steps",),
    "steps": ("stop_steps",),
    "updates": ("stop_updates",),
    "iterations": ("stop_updates",),
    "time": ("stop_seconds",),
    "timeout": ("stop_seconds",),
    "target": ("stop_return",),
    "reward": ("stop_return",),
    "workers": ("actors",),
    "num_workers": ("actors",),
    "num_actors": ("actors",),
    "num_envs": ("envs_per_actor",),
    "n_envs": ("envs_per_actor",),
    "envs": ("envs_per_actor",),
    "env_id": ("env",),
    "environment": ("env",),
    "env_kwargs": ("env_options",),
    "env_config": ("env_options",),
    "env_args": ("env_options",),
    "task": ("env",),
    "gpu": ("device",),
    "cuda": ("device",),
    "ent_coef": ("entropy_cost",),
    "vf_coef": ("value_cost",),
    "max_grad_norm": ("grad_clip",),
    "layers": ("hidden", "actor_hidden"),
    "hidden_size": ("hidden", "actor_hidden"),
    "hidden": ("actor_hidden",),
    "tau": ("target_rate",),
    "logdir": ("run_dir",),
    "log_dir": ("run_dir",),
    "save_dir": ("run_dir",),
    "output_dir": ("run_dir",),
    "out": ("output", "run_dir"),
    "output": ("run_dir",),
    "load": ("restore", "resume"),
    "checkpoint": ("resume",),
    "checkpoint_freq": ("checkpoint_every",),
    "save_every": ("checkpoint_every",),
    "eval_freq": ("eval_every",),
    "cluster": ("ray_address",),
    "address": ("ray_address",),
    "backend": ("runtime",),
}


@dataclass(frozen=True)
class Option:
    """A field as it is typed."""

    field: str
    owner: type[Any]  # the dataclass that is asked for it
    group: type[Any]  # the one that declares it first, from which the other inherits
    kind: Any  # bool, int, float, str, or the choices as a tuple of strings
    many: bool  # takes any number of words
    text: str
    words: tuple[str, ...] = ()  # that it takes beside numbers

    @property
    def name(self) -> str:
        return option(self.field)


def options_of(owner: type[Any]) -> list[Option]:
    hints = typing.get_type_hints(owner, include_extras=True)
    texts = field_texts(owner)
    found = []
    for field in dataclasses.fields(owner):
        kind, many = _kind(plain_type(hints[field.name]))
        group = next(base for base in owner.__mro__ if field.name in inspect.get_annotations(base))
        if group is not owner:  # a group that says it anew, as with another default, takes it from where it belongs
            group = [base for base in group.__mro__ if field.name in inspect.get_annotations(base)][-1]
        words = _words(plain_type(hints[field.name]))
        found.append(Option(field.name, owner, group, kind, many, texts.get(field.name, ""), words))
    return found


def _kind(hint: Any) -> tuple[Any, bool]:
    """What is typed for a field: of several types the one that can be, `str` for what only Python can give."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [plain_type(part) for part in typing.get_args(hint) if part is not type(None)]
        return _kind(str if str in parts else parts[0])
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint), False
    return typing.get_origin(hint) or hint, False


def _words(hint: Any) -> tuple[str, ...]:
    """Those of a type that is one of several (`Count | Literal["auto"]`)."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    choices = (part for part in parts if typing.get_origin(part) is typing.Literal)
    return tuple(word for choice in choices for word in typing.get_args(choice))


@dataclass
class Typed:
    """What was typed: values by dataclass and field, and the words that belong to no option."""

    values: dict[type[Any], dict[str, Any]]
    words: list[str]
    help: bool

    def make(self, owner: type[Any]) -> Any:
        return owner(**self.values[owner])


def read(words: Sequence[str], owners: Iterable[type[Any]], command: str, positional: bool = False) -> Typed:
    """The values that the words give to fields of the dataclasses, whose options stand side by side."""
    owners = list(owners)
    options = [found for owner in owners for found in options_of(owner)]
    by_name = {found.name: (found, True) for found in options}
    by_name |= {option(f"no_{found.field}"): (found, False) for found in options if found.kind is bool}
    typed = Typed({owner: {} for owner in owners}, [], False)
    waiting = _without_ranges(words) if option("most_actors") in by_name else list(words)
    while waiting:
        word = waiting.pop(0)
        key, equals, given = word.partition("=")
        if word in HELP:
            typed.help = True
        elif not re.match(r"--?[A-Za-z]", word):
            if not positional:
                raise UserError(f"{command} does not understand {word!r}: see {command} --help.")
            typed.words.append(word)
        elif (name := normal(key)) not in by_name:
            raise UserError(f"{command} has no option {key}.{suggestion(name, by_name) or f' See {command} --help.'}")
        else:
            asked, positive = by_name[name]
            values = [given] if equals else _following(waiting, asked)
            value, given_before = _value(asked, name, values, positive, command), typed.values[asked.owner]
            given_before[asked.field] = {**given_before.get(asked.field, {}), **value} if asked.kind is dict else value
    return typed


def _without_ranges(words: Sequence[str]) -> list[str]:
    """`--actors 8..64` and `--actors auto` are two options in one: how many there are at first, and at the most."""
    found: list[str] = []
    for word in words:
        key, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        concerned = normal(key) == "--actors" if equals else bool(found) and normal(found[-1]) == "--actors"
        ranged = re.fullmatch(r"(\d+)\.\.(\d+)", f"1..{AUTOMATIC}" if value == "auto" else value)
        if concerned and ranged is not None:
            found += [f"{key}={ranged[1]}" if equals else ranged[1], "--most-actors", ranged[2]]
        else:
            found.append(word)
    return found


def peek(words: Sequence[str], field: str, default: str) -> str:
    """The value of one option before all are read."""
    value = default
    for word, following in zip(words, [*words[1:], default]):
        key, equals, given = word.partition("=")
        if normal(key) == option(field):
            value = given if equals else following
    return value


def normal(key: str) -> str:
    """An option however it was typed: hyphens and underscores are the same."""
    return "--" + key[2:].rstrip("_").replace("_", "-") if key.startswith("--") else key


def suggestion(name: str, options: Iterable[str]) -> str:
    """ " Did you mean …?": what other tools call so, what begins or ends so, what is spelled nearly so; or nothing."""
    known = list(options)
    asked = name.lstrip("-")
    for field in SYNONYMS.get(asked.replace("-", "_").lower(), ()):
        if option(field) in known:
            return f" Did you mean {option(field)}?"
    if f"--{asked.removeprefix('no-')}" in known:  # of what is no switch
        return f" Did you mean --{asked.removeprefix('no-')}?"
    near = did_you_mean(asked, [each.lstrip("-") for each in known], cutoff=0.75)
    if near:
        return near.replace("mean ", "mean --")
    parts = [each for each in known if each.startswith(f"--{asked}-") or each.endswith(f"-{asked}")]
    return f" Did you mean {parts[0]}?" if len(parts) == 1 else ""


def _following(waiting: list[str], asked: Option) -> list[str]:
    """The words after an option that belong to it."""
    values: list[str] = []
    most = 0 if asked.kind is bool else len(waiting) if asked.many else 1
    while waiting and len(values) < most and not re.match(r"--?[A-Za-z]", waiting[0]):
        values.append(waiting.pop(0))
    return values


def _value(asked: Option, name: str, values: list[str], positive: bool, command: str) -> Any:
    if asked.kind is bool:
        if values:
            raise UserError(
                f"{name} takes no value, not {values[0]!r}: give {asked.name} or {option('no_' + asked.field)}."
            )
        return positive
    if not values and not asked.many:
        raise UserError(f"{name} needs a value: see {command} --help.")
    if isinstance(asked.kind, tuple):
        if values[0] not in asked.kind:
            raise UserError(unknown(name, values[0], asked.kind))
        return values[0]
    if values and values[0] in asked.words:
        return values[0]
    parse, wanted = _PARSERS[asked.kind]
    wanted = " or ".join([wanted, *asked.words])
    try:
        parsed = tuple(parse(value) for value in values)
    except ValueError:
        example = f"whole numbers with spaces between, such as {name} 64 64" if asked.many else wanted
        raise UserError(f"{name} {' '.join(values)} cannot be understood: give {example}.") from None
    return parsed if asked.many else parsed[0]


def _whole(word: str) -> int:
    """Also 1e6, which is one."""
    if re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", word) and (number := Decimal(word)) == int(number):
        return int(number)
    return int(word)


def _text(word: str) -> str:
    if not word:
        raise ValueError
    return word


def _named_value(words: str) -> dict[str, Any]:
    """key=value; the value as Python writes it, any other word as text."""
    key, equals, value = words.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError
    try:
        return {key: ast.literal_eval({"true": "True", "false": "False"}.get(value, value))}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return {key: value}


_PARSERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    int: (_whole, "a whole number"),
    float: (float, "a number"),
    str: (_text, "a name"),
    dict: (_named_value, "key=value, such as gravity=-9.8"),
}
