"""Experiments in TOML files: keys are the names of options, `algorithm` beside them. Reading, checking, writing.

A file becomes the words that would have been typed, before those that were: one parser, and the command line wins.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.arguments.command_options import Output
from shoal.arguments.words import Option, normal, options_of, read, suggestion
from shoal.config import field_texts, option
from shoal.errors import UserError
from shoal.runs import registry
from shoal.runs.options import RunOptions

ALGORITHM = "algorithm"
CONFIG = "--config"
NOT_WRITTEN = ("run_dir", "resume")  # of the folder that a run was in
WIDTH = 100  # of a line with its comment
TABLE = "a table of plain values, such as {gravity = -9.8}"


def read_file(path: Path) -> dict[str, Any]:
    """The table of a TOML file; one sentence where there is none."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UserError(f"There is no config file {path}: shoal config RUN > {path.name} writes a run's.") from None
    except OSError as error:
        raise UserError(f"The config file {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}.") from None
    except RecursionError:
        raise UserError(f"{path} is no TOML: it is nested too deeply.") from None


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    path: Path
    values: Mapping[str, Any]

    def algorithm(self) -> str | None:
        name = self.values.get(ALGORITHM)
        if name is not None and not isinstance(name, str):
            raise UserError(f'{self.path}: algorithm must be a name, such as algorithm = "impala".')
        return name

    def named_algorithm(self) -> str:
        if (name := self.algorithm()) is None:
            raise UserError(f'{self.path} names no algorithm: add a line such as algorithm = "impala".')
        return name

    def words(self) -> list[str]:
        """As they would be typed."""
        return [word for key, value in self.values.items() if key != ALGORITHM for word in _typed(key, value)]

    def check(self, owners: Sequence[type[Any]]) -> None:
        """Every key is an option, and its value one that the option takes."""
        known = {found.name: found for owner in owners for found in options_of(owner)}
        given: dict[str, str] = {}
        for key, value in self.values.items():
            if key == ALGORITHM:
                continue
            name = normal(option(key))
            if key == "sweep" and isinstance(value, Mapping):
                raise UserError(f"{self.path} is the file of a sweep: shoal sweep {self.path}")
            if name not in known:
                near = suggestion(name, known).replace("--", "").replace("-", "_")
                raise UserError(
                    f"{self.path}: there is no option {key}.{near or f' Names are those of {_help(owners)}.'}"
                )
            if given.setdefault(name, key) != key:
                raise UserError(f"{self.path}: {given[name]} and {key} are the same option: give one of them.")
            if (wanted := _misfit(known[name], value)) is not None:
                raise UserError(f"{self.path}: {key} = {written(value)} is no such value: give {wanted}.")
            try:
                read(_typed(key, value), owners, str(self.path))
            except UserError as error:
                raise UserError(f"{self.path}: {error}") from None


def take_config(words: Sequence[str]) -> tuple[ConfigFile | None, list[str]]:
    """The file that `--config` names among typed words, and the other words."""
    rest, found = [], None
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        key, equals, given = word.partition("=")
        if normal(key) != CONFIG:
            rest.append(word)
            continue
        if not equals and (not waiting or waiting[0].startswith("-")):
            raise UserError("--config needs a file: shoal train --config run.toml")
        if found is not None:
            raise UserError("--config was given twice: give one file.")
        found = Path(given if equals else waiting.pop(0))
    return (None if found is None else ConfigFile(found, read_file(found))), rest


def load(path: Path, changes: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An algorithm's config and the options of a run out of a file, with what is given in Python in its place."""
    file = ConfigFile(path, read_file(path))
    page = registry.load(file.named_algorithm())
    file.check([RunOptions, page.Config])
    typed = read(file.words(), [RunOptions, page.Config], str(path))
    names = {field.name for field in dataclasses.fields(page.Config)}
    fields = typed.values[page.Config] | {key: value for key, value in changes.items() if key in names}
    options = typed.values[RunOptions] | {key: value for key, value in changes.items() if key not in names}
    return page.Config(**fields), options


def _typed(key: str, value: Any) -> list[str]:
    """An option's words. A value stands behind "=", so that one that begins with a hyphen is a value too."""
    if isinstance(value, bool):
        return [option(key) if value else option(f"no_{key}")]
    if _are_typed(value):
        return [f"{option(key)}={words}" for words in value]
    if isinstance(value, list):
        return [option(key), *(str(_plain(part)) for part in value)]
    if isinstance(value, Mapping):
        return [f"{option(key)}={name}={part!r}" for name, part in value.items()]
    return [f"{option(key)}={_plain(value)}"]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1 else value


def _misfit(found: Option, value: Any) -> str | None:
    """What an option takes, where a file's value is of another kind; the rest is the parser's."""
    if found.many:
        fits = isinstance(value, list) and all(_is(found.kind, part) for part in value)
        return None if fits else "a list of whole numbers, such as [64, 64]"
    if isinstance(found.kind, tuple):
        return None if isinstance(value, str) else f"one of {', '.join(map(written, found.kind))}"
    if found.kind is dict and _are_typed(value):
        return None
    wanted = {bool: "true or false", int: "a whole number", float: "a number", dict: TABLE}
    if _is(found.kind, value) or value in found.words:
        return None
    return " or ".join([wanted.get(found.kind, "a name in quotes"), *map(written, found.words)])


def _is(kind: Any, value: Any) -> bool:
    if kind in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind is float or isinstance(value, int) or value.is_integer())
    return isinstance(value, kind) and (kind is not dict or all(map(_is_literal, value.values())))


def _are_typed(value: Any) -> bool:
    """Whether an option's values stand there as they would be typed: ["size=(3,)"], where TOML has no such value."""
    return isinstance(value, list) and bool(value) and all(isinstance(part, str) and "=" in part for part in value)


def _is_literal(value: Any) -> bool:
    """Whether an option that is typed as key=value can be this: dates, and numbers that are not finite, cannot."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _help(owners: Iterable[type[Any]]) -> str:
    """The command that lists them."""
    last = list(owners)[-1].__module__
    package, _, name = last.rpartition(".")
    return f"shoal train {name if package == 'shoal.algorithms' else 'ALGORITHM'} --help"


# ---- writing ---------------------------------------------------------------------------------------------------------


def run_as_toml(path: Path) -> str:
    """A run's config as a file with which another can be started. It has every value: later defaults change nothing."""
    from shoal.runs import directory  # which imports torch

    record = directory.read_config(path)
    page = registry.load(record["algorithm"])
    recorded = record.get("options")
    given = {
        name: value
        for name, value in (recorded if isinstance(recorded, dict) else {}).items()
        if name not in NOT_WRITTEN and value != getattr(RunOptions(), name, value)
    }
    lost = record.get("lost") or []
    lines = [f"# {registry.short_name(record['algorithm'])} on {record['env']}: shoal train --config FILE"]
    if folders := record.get("folders"):
        lines.append(f"# its own modules were found in {', '.join(map(str, folders))}")
    lines += [f"{ALGORITHM} = {written(record['algorithm'])}", f"seed = {written(record.get('seed', 0))}"]
    lines += [_line(name, value, field_texts(RunOptions)) for name, value in given.items() if name != "seed"]
    texts = field_texts(page.Config)
    for name, value in record["config"].items():
        if name in lost:
            lines.append(f"# {name} was {value}, which is in no module: put it into one and name it module:factory")
        elif value is not None and name in texts:
            lines.append(_line(name, value, texts))
    return "\n".join(lines) + "\n"


def as_toml(values: Mapping[str, Any], comment: str = "") -> str:
    lines = [f"# {comment}"] if comment else []
    return (
        "\n".join([*lines, *(f"{key} = {written(value)}" for key, value in values.items() if value is not None)]) + "\n"
    )


def written(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {written(part)}" for key, part in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _has_toml(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_has_toml, value.values()))
    return (
        value is not None
        and not isinstance(value, tuple)
        and (not isinstance(value, list) or all(map(_has_toml, value)))
    )


def _line(name: str, value: Any, texts: Mapping[str, str]) -> str:
    if isinstance(value, Mapping) and not _has_toml(value):
        value = [f"{key}={part!r}" for key, part in value.items()]
    line, text = f"{name} = {written(value)}", texts.get(name, "")
    return f"{line}  # {text}" if text and len(line) + len(text) + 4 <= WIDTH else line


OWNERS = (RunOptions, Output)  # beside an algorithm's config: what a file for `shoal train` may set
