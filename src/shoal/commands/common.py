"""What commands share: exit codes, and how they tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from shoal.config import validate
from shoal.errors import UserError
from shoal.experiment.arguments import Typed, read

OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130


def parse(words: Sequence[str], command: str, description: str, options: type[Any], operands: str = "") -> Typed:
    """What was typed for a command whose options are one dataclass; `--help` prints it and ends."""
    typed = read(words, [options], command, positional=bool(operands))
    if typed.help:
        print_help(command, description, options(), words=operands)
    validate(typed.make(options))
    return typed


def one_run(typed: Typed, command: str) -> str:
    """The run directory that a command was given."""
    if len(typed.words) != 1:
        raise UserError(f"{command} needs one run directory: {command} runs/NAME [OPTIONS]; see {command} --help.")
    return typed.words[0]


def print_help(command: str, description: str, *parts: Any, words: str = "") -> NoReturn:
    from shoal.experiment.usage import help_text

    print(help_text(command, description, parts, words))
    raise SystemExit(OK)


def print_json(record: Mapping[str, Any] | Sequence[Any]) -> None:
    sys.stderr.flush()
    print(json.dumps(record), flush=True)


def warn(text: str) -> None:
    print(f"shoal: {text}", file=sys.stderr, flush=True)
