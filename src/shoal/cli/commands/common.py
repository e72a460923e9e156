"""What commands share: exit codes, and how they tell."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO, TypeVar

from shoal.arguments.words import read
from shoal.config import validate
from shoal.errors import UserError

C = TypeVar("C")
Commands = Mapping[str, tuple[Callable[[Sequence[str]], int], tuple[type[Any], ...]]]  # what runs each; its options
OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130
WHOLE = re.compile(r"`[^`\n]*`|pip install \S+|shoal [a-z]+ \S+")  # commands within sentences
NO_BREAK = "\N{NO-BREAK SPACE}"
EXAMPLES: Mapping[str, Sequence[str]] = {  # at the end of a command's --help
    "shoal train": (
        "shoal train ppo --env CartPole-v1",
        "shoal train sac --env Pendulum-v1 --stop-steps 1e5 --seed 1",
        "shoal train impala --env my_module:make_env --network my_module:Net",
        "shoal train --config run.toml",
    ),
    "shoal doctor": (
        "shoal doctor --env my_module:make_env",
        "shoal doctor --env my_module:make_env --network my_module:Net --algorithm ppo",
    ),
    "shoal resume": ("shoal resume runs/NAME", "shoal resume runs/NAME --stop-steps 2e6 --actors 4"),
    "shoal config": ("shoal config runs/NAME > run.toml", "shoal train --config run.toml --seed 2"),
    "shoal eval": ("shoal eval runs/NAME --episodes 100", "shoal eval runs/NAME:best --seed 1 --json"),
    "shoal collect": (
        "shoal collect runs/NAME --output hopper-expert --episodes 200",
        "shoal collect runs/NAME --output hopper-random --policy random",
    ),
    "shoal judge": ("shoal judge runs/NAME --data DATASET", "shoal judge runs/NAME --data DATASET --env Pendulum-v1"),
    "shoal record": ("shoal record runs/NAME --output film.gif --episodes 3",),
    "shoal export": ("shoal export runs/NAME --format onnx --output policy",),
    "shoal serve": (
        "shoal serve runs/NAME --port 8700",
        "shoal serve runs/NAME:best --follow --workers 2",
        "shoal serve policy/export-onnx --host 0.0.0.0 --token-file token",
    ),
    "shoal sweep": ("shoal sweep sweep.toml", "shoal sweep sweep.toml --parallel 4 --trials 20"),
    "shoal runs": ("shoal runs --sort return", "shoal runs --where state=crashed,env=CartPole-v1"),
    "shoal status": ("shoal status runs/NAME",),
    "shoal scale": ("shoal scale runs/NAME actors=6",),
    "shoal compare": ("shoal compare runs/* --by learning_rate",),
    "shoal diff": ("shoal diff runs/A runs/B",),
    "shoal plot": ("shoal plot runs/* --output curve.png",),
    "shoal verify": ("shoal verify apex_dqn --env CartPole-v1 --updates 20",),
    "shoal plan": (
        "shoal plan impala --env CartPole-v1 --steps-per-second 1e6 --cores 32",
        "shoal plan r2d2 --env my_module:make_env --steps-per-second 2e4 --cores 16",
    ),
    "shoal bench throughput": ("shoal bench throughput impala --env CartPole-v1 --repeat 5",),
    "shoal bench limits": ("shoal bench limits impala --env CartPole-v1",),
    "shoal bench update": ("shoal bench update sac --env HalfCheetah-v5",),
    "shoal bench replay": ("shoal bench replay --quick",),
    "shoal bench checkpoints": ("shoal bench checkpoints --seconds 30",),
}


def parse(
    words: Sequence[str], command: str, description: str, options: type[C], operands: str = ""
) -> tuple[C, Sequence[str]]:
    """What was typed for a command whose options are one dataclass, and its other words: one where RUN, DATASET
    or SOURCE is asked for. `--help` prints it and ends."""
    typed = read(words, [options], command, positional=bool(operands))
    if typed.help:
        print_help(command, description, options(), words=operands)
    made: C = typed.make(options)
    validate(made)
    if operands == "RUN" and len(typed.words) != 1:
        raise UserError(f"{command} needs one run directory: {command} runs/NAME [OPTIONS]; see {command} --help.")
    if operands in ("DATASET", "SOURCE") and len(typed.words) != 1:
        raise UserError(f"{command} needs one {operands}: {command} {operands} [OPTIONS]; see {command} --help.")
    return made, typed.words


def print_help(command: str, description: str, *parts: Any, words: str = "", examples: Sequence[str] = ()) -> NoReturn:
    from shoal.arguments.usage import help_text

    print(help_text(command, description, parts, words, examples or EXAMPLES.get(command, ())))
    raise SystemExit(OK)


def print_json(record: Mapping[str, Any] | Sequence[Any]) -> None:
    sys.stderr.flush()
    print(json.dumps(record), flush=True)


def warn(text: str) -> None:
    print(fit(f"shoal: {text}", sys.stderr), file=sys.stderr, flush=True)


def terminal_width() -> int | None:
    """Columns that there are for tables; None where stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fit(text: str, stream: TextIO) -> str:
    """Lines that a terminal does not break within words; commands, which are copied, stay whole. As it is without a
    terminal: other programs read lines."""
    if not stream.isatty():
        return text
    whole = WHOLE.sub(lambda found: found.group().replace(" ", NO_BREAK), text)
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) if len(line) > width else [line]
        for line in whole.split("\n")
    )
    return "\n".join(line for each in lines for line in each).replace(NO_BREAK, " ")
