"""From typed words to dataclasses: tyro does the parsing and the help, errors become one sentence each."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config import did_you_mean, option
from shoal.errors import UserError

HELP = ("-h", "--help")
_KINDS = {"INT": "a whole number", "FLOAT": "a number", "[INT [INT ...]]": "whole numbers"}


def parse(parts: Mapping[str, Any], words: Sequence[str], command: str, description: str) -> dict[str, Any]:
    """Objects like the dataclass instances in `parts`, with what was typed in place of their values.

    The options of all parts stand side by side; a part's name is only the heading of its options in the help.
    """
    import tyro  # imported late: a run's processes should be starting already

    flat: Any = tyro.conf.OmitArgPrefixes
    fields = [(name, flat[type(part)]) for name, part in parts.items()]
    combined: Any = dataclasses.make_dataclass("combined", fields)
    words = _checked(words, parts, command)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            found = tyro.cli(combined, prog=command, description=description, default=combined(**parts), args=words)
    except SystemExit as end:
        if not end.code:
            raise
        raise UserError(_sentence(errors.getvalue(), words, command)) from None
    return {name: getattr(found, name) for name in parts}


def peek(words: Sequence[str], name: str, default: Any = None) -> Any:
    """The value of one option before all are parsed."""
    wanted = option(name)
    value = default
    for index, word in enumerate(words):
        key, equals, given = word.partition("=")
        if _normal(key) == wanted:
            value = given if equals else (words[index + 1] if index + 1 < len(words) else default)
    return value


def _checked(words: Sequence[str], parts: Mapping[str, Any], command: str) -> list[str]:
    """The words as tyro knows them; an option that does not exist is refused here, with the nearest that does."""
    names: dict[str, str] = {}
    for part in parts.values():
        hints = typing.get_type_hints(type(part))
        for field in dataclasses.fields(part):
            names[option(field.name)] = "--" + field.name
            if hints[field.name] is bool:
                names[option("no_" + field.name)] = "--no-" + field.name
    checked = []
    for word in words:
        key, equals, value = word.partition("=")
        if not re.match(r"--?[A-Za-z]", key) or key in HELP:
            checked.append(word)
        elif _normal(key) in names:
            checked.append(names[_normal(key)] + equals + value)
        else:
            near = did_you_mean(_normal(key), names) or f" See {command} --help."
            raise UserError(f"{command} has no option {key}.{near}")
    return checked


def _normal(key: str) -> str:
    return "--" + key.lstrip("-").rstrip("_").replace("_", "-") if key.startswith("--") else key


def _values(words: Sequence[str], name: str) -> str:
    """What was typed for an option that may take several words."""
    place = max(index for index, word in enumerate(words) if _normal(word.partition("=")[0]) == name)
    values = [words[place].partition("=")[2]] if "=" in words[place] else []
    for word in words[place + 1 :]:
        if word.startswith("--"):
            break
        values.append(word)
    return " ".join(values)


def _sentence(box: str, words: Sequence[str], command: str) -> str:
    """tyro's framed message as one sentence that names the option."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip(" │") for line in text.splitlines() if line.startswith("│")]
    rule = next((index for index, line in enumerate(lines) if line.startswith("──")), len(lines))
    message = " ".join(lines[:rule])
    if (found := re.search(r"Error parsing (--[\w-]+)", message)) is not None:
        name = found[1]
        kind = next((line.removeprefix(name).strip() for line in lines[rule:] if line.startswith(name)), "")
        kind = kind.replace("{None}|", "")
        name = _normal(name)
        return f"{name} {_values(words, name)} cannot be understood: give {_KINDS.get(kind, kind)}."
    if (found := re.search(r"Missing value for argument '(--[\w-]+)'", message)) is not None:
        return f"{found[1]} needs a value: see {command} --help."
    if (
        found := re.search(r"invalid choice '(.*)' for argument '(--[\w-]+)'. Expected one of \((.*)\)", message)
    ) is not None:
        choices = [choice.strip("' ") for choice in found[3].split(",") if choice.strip("' ")]
        near = did_you_mean(found[1], choices)
        return f"{found[2]} {found[1]} is not known: choose one of {', '.join(choices)}.{near}"
    if (found := re.search(r"Unrecognized options: (.*)", message)) is not None:
        return f"{command} does not understand {found[1]!r}: see {command} --help."
    return f"{message} See {command} --help."
