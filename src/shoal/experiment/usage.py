"""The text of --help, and what a shell needs to complete words: both from the options' own declarations."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.config import option
from shoal.experiment.arguments import Option, options_of

INDENT = 26  # columns before an option's text
_WORDS = {int: "N", float: "NUMBER", str: "NAME", dict: "KEY=VALUE"}


def help_text(command: str, description: str, parts: Iterable[Any], words: str = "") -> str:
    """Usage and options of dataclass instances, whose values are shown as defaults; their groups are the headings."""
    width = _width()
    lines = [f"usage: {command} {words + ' ' if words else ''}[OPTIONS]", "", *textwrap.wrap(description, width)]
    for part in parts:
        groups: dict[type[Any], list[Option]] = {type(part): []}  # what is the part's own comes first
        for found in options_of(type(part)):
            groups.setdefault(found.group, []).append(found)
        for group, options in groups.items():
            if options:
                lines += ["", *textwrap.wrap(_heading(group), width)]
                lines += [line for found in options for line in _described(found, getattr(part, found.field))]
    return "\n".join([*lines, "", "  -h, --help              this text"])


def _heading(group: type[Any]) -> str:
    """The first sentence of its docstring, or the name of its module."""
    said = (group.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
    return said or group.__module__


def _described(found: Option, value: Any) -> Sequence[str]:
    default = _shown(value)
    text = " ".join(part for part in (found.text, f"[{default}]" if default else "") if part)
    return in_columns(f"  {_typed(found)}", text, INDENT)


def in_columns(left: str, text: str, indent: int) -> list[str]:
    """A word and what is said of it beside it, or below where it is too long."""
    blank = " " * indent
    if len(left) >= indent:
        return [left, *textwrap.wrap(text, _width(), initial_indent=blank, subsequent_indent=blank)]
    return textwrap.wrap(text, _width(), initial_indent=left.ljust(indent), subsequent_indent=blank) or [left]


def _width() -> int:
    return max(60, min(100, shutil.get_terminal_size().columns))


def _typed(found: Option) -> str:
    if found.kind is bool:
        return f"--[no-]{found.name.removeprefix('--')}"
    if isinstance(found.kind, tuple):
        return f"{found.name} {{{','.join(found.kind)}}}"
    return f"{found.name} {_WORDS[found.kind]}{' ...' if found.many else ''}"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={part}" for key, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}" if type(value) is int else str(value)


# ---- completion ------------------------------------------------------------------------------------------------------

_SCRIPT = """\
# Completion of the shoal command for bash, and for zsh after: autoload -U bashcompinit && bashcompinit
_shoal() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local at="${{COMP_WORDS[*]:1:2}}" words=""
    [[ ${{COMP_WORDS[1]}} == bench ]] && at="train ${{COMP_WORDS[3]}}"
    case "$before" in
{choices}
        --run-dir|--output) COMPREPLY=($(compgen -f -- "$word")); return ;;
    esac
    [[ -z $words ]] && case "$COMP_CWORD,${{COMP_WORDS[1]}}" in
        1,*) words="{commands}" ;;
        2,train|3,bench) words="{algorithms}" ;;
        2,bench) words="throughput replay" ;;
        *) case "$at" in
{options}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [[ ${{COMP_WORDS[1]}} == eval || ${{COMP_WORDS[1]}} == plot ]] && COMPREPLY+=($(compgen -d -- "$word"))
}}
complete -o filenames -F _shoal shoal"""


Owners = Mapping[str, Sequence[type[Any]]]  # the dataclasses whose fields are options, by command or algorithm


def completion_script(commands: Owners, algorithms: Owners) -> str:
    """A script for bash with every option of every command and algorithm; nothing is asked of Python while typing."""
    tables = {f"train\\ {name}": owners for name, owners in algorithms.items()}
    tables |= {f"{command}\\ *": owners for command, owners in commands.items() if owners}
    choices: dict[str, str] = {}
    cases = []
    for pattern, owners in tables.items():
        found = [each for owner in owners for each in options_of(owner)]
        choices |= {each.name: " ".join(each.kind) for each in found if isinstance(each.kind, tuple)}
        cases.append(f'            {pattern}) words="{" ".join(_spelled(found))}" ;;')
    chosen = [f'        {name}) words="{words}" ;;' for name, words in choices.items()]
    return _SCRIPT.format(
        choices="\n".join(chosen),
        commands=" ".join(commands),
        algorithms=" ".join(algorithms),
        options="\n".join(cases),
    )


def _spelled(options: Iterable[Option]) -> list[str]:
    names = [each.name for each in options]
    return sorted([*names, *(option(f"no_{each.field}") for each in options if each.kind is bool), "--help"])
