"""The text of --help, and what a shell needs to complete words: both from the options' own declarations."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.arguments.words import Option, options_of
from shoal.config import option

INDENT = 26  # columns before an option's text
_WORDS = {int: "N", float: "NUMBER", str: "NAME", dict: "KEY=VALUE"}


def help_text(
    command: str, description: str, parts: Iterable[Any], words: str = "", examples: Sequence[str] = ()
) -> str:
    """Usage and options of dataclass instances, whose values are shown as defaults; their groups are the headings."""
    parts = list(parts)
    takes_options = any(options_of(type(part)) for part in parts)
    usage = " ".join(part for part in (f"usage: {command}", words, "[OPTIONS]" if takes_options else "") if part)
    lines = [usage, "", *wrapped(description)]
    for part in parts:
        groups: dict[type[Any], list[Option]] = {type(part): []}  # what is the part's own comes first
        for found in options_of(type(part)):
            groups.setdefault(found.group, []).append(found)
        for group, options in groups.items():
            if options:
                lines += ["", *wrapped(_heading(group))]
                lines += [line for found in options for line in _described(found, getattr(part, found.field))]
    lines += ["", *in_columns("  -h, --help", "This text.", INDENT)]
    return "\n".join([*lines, *shown_examples(examples)])


def shown_examples(examples: Sequence[str]) -> list[str]:
    return ["", "For example:", *(f"  {example}" for example in examples)] if examples else []


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


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width())


def _width() -> int:
    return max(60, min(100, shutil.get_terminal_size().columns))


def _typed(found: Option) -> str:
    if found.kind is bool:
        return f"--[no-]{found.name.removeprefix('--')}"
    if isinstance(found.kind, tuple):
        return f"{found.name} {{{','.join(found.kind)}}}"
    return f"{found.name} {'|'.join([_WORDS[found.kind], *found.words])}{' ...' if found.many else ''}"


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
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
    local place=$COMP_CWORD algorithm="" words="" files=""
    COMPREPLY=()
    if [[ $command == bench && $place -gt 2 ]]; then  # its second word is part of the command
        command="bench ${{COMP_WORDS[2]}}"
        place=$((place - 1))
        algorithm=${{COMP_WORDS[3]}}
    else
        algorithm=${{COMP_WORDS[2]}}
    fi
    if [[ $COMP_CWORD == 1 ]]; then
        words="{commands}"
    elif [[ $word != -* ]]; then
        case "$before" in
{choices}
            {paths}) files=-f ;;
        esac
    fi
    if [[ -z $words && -z $files ]]; then
        case "$command,$place" in
            {with_algorithm}) words="{algorithms}"; [[ $command == train ]] && files=-f ;;
            bench,2) words="{benchmarks}" ;;
            *) case "$word" in
                -*)
                    case "$command" in
{options}
                    esac
                    case "$command" in {takes_algorithm})
                        case "$algorithm" in
{fields}
                        esac ;;
                    esac ;;
                *) files=-f ;;
            esac ;;
        esac
    fi
    [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$word"))
    [[ -n $files ]] && COMPREPLY+=($(compgen $files -- "$word"))
}}
complete -o filenames -F _shoal shoal"""

PATHS = ("--config", "--folder", "--output", "--restore", "--run-dir")  # whose values are files or folders
Owners = Mapping[str, Sequence[type[Any]]]  # the dataclasses whose fields are options, by command or algorithm


def completion_script(commands: Owners, algorithms: Owners, takes_algorithm: Sequence[str]) -> str:
    """A script for bash with every option of every command and algorithm; nothing is asked of Python while typing.

    A command may be two words ("bench limits"); those in `takes_algorithm` are followed by an algorithm, whose options
    they take as well.
    """
    choices: dict[str, str] = {}

    def case(name: str, owners: Sequence[type[Any]], before: str, margin: int) -> str:
        found = [each for owner in owners for each in options_of(owner)]
        choices.update({each.name: " ".join(each.kind) for each in found if isinstance(each.kind, tuple)})
        return f'{" " * margin}"{name}") words="{" ".join([*before.split(), *_spelled(found)])}" ;;'

    options = [case(name, owners, "--help", 24) for name, owners in commands.items()]
    fields = [case(name, owners, "$words", 28) for name, owners in algorithms.items()]
    firsts = dict.fromkeys(name.split()[0] for name in commands)
    return _SCRIPT.format(
        choices="\n".join(f'            {name}) words="{words}" ;;' for name, words in choices.items()),
        paths="|".join(PATHS),
        commands=" ".join(firsts),
        benchmarks=" ".join(name.split()[1] for name in commands if " " in name),
        with_algorithm="|".join(f'"{name},2"' for name in takes_algorithm),
        takes_algorithm="|".join(f'"{name}"' for name in takes_algorithm),
        algorithms=" ".join(algorithms),
        options="\n".join(options),
        fields="\n".join(fields),
    )


def _spelled(options: Iterable[Option]) -> list[str]:
    names = [each.name for each in options]
    return sorted([*names, *(option(f"no_{each.field}") for each in options if each.kind is bool)])
