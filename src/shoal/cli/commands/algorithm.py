"""What commands share that take an algorithm: its name, its config as it was typed, and an early start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.arguments.words import HELP, Typed, peek, read
from shoal.cli.commands.common import EXAMPLES, OK, USAGE, print_help
from shoal.config import apply_preset
from shoal.errors import UserError
from shoal.runs.options import RunOptions

if TYPE_CHECKING:
    from shoal.envs import EnvSpec
    from shoal.runs.registry import Algorithm


def take_algorithm(command: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The algorithm's name, which is the first word, and the rest."""
    from shoal.runs import registry

    if not words or words[0] in HELP:
        print(_overview(f"shoal {command}", registry.names()))
        raise SystemExit(OK if words else USAGE)
    if words[0].startswith("-"):
        raise UserError(f"shoal {command} needs an algorithm first: shoal {command} impala {' '.join(words)}")
    registry.check_name(words[0])
    return words[0], words[1:]


PURPOSES = {
    "shoal train": "Train until the environment is solved, or until a stop rule (--stop-…) is met. In place of a name "
    "give the file of your own algorithm (my_ppo.py), or --config run.toml.",
    "shoal verify": "Prove that a run which is killed and resumed becomes, to the last bit, what it would have been.",
    "shoal plan": "Say what a target of steps per second needs: actors, servers, learners, machines, memory, network.",
    "shoal bench throughput": "Measure steps per second of the program that shoal train would run.",
    "shoal bench update": "Time the parts of an update: in the program, alone, and in a bare loop of the same method.",
    "shoal bench limits": "Measure environments, inference and training alone, and the ceiling they imply.",
}


def _overview(command: str, names: Sequence[str]) -> str:
    """Of a command that was given no algorithm: what it does, and which there are."""
    from shoal.arguments.usage import shown_examples, wrapped

    lines = [f"usage: {command} ALGORITHM [OPTIONS]", "", *wrapped(PURPOSES[command]), "", algorithm_lines(names), ""]
    lines += wrapped(f"{command} ALGORITHM --help shows every option and its default.")
    return "\n".join([*lines, *shown_examples(EXAMPLES[command])])


def algorithm_lines(names: Sequence[str]) -> str:
    """Each with its one line, in the terminal's width."""
    from shoal.arguments.usage import in_columns
    from shoal.runs import registry

    return "\n".join(line for name in names for line in in_columns(name, registry.description(name), 11))


def configure(
    command: str, name: str, words: Sequence[str], *others: type[Any]
) -> tuple[Algorithm, EnvSpec, Any, Typed]:
    """The algorithm, its environment, its finished config (defaults, then the preset, then what was typed), and all
    that was typed."""
    from shoal.experiment.environments import describe_task, with_dataset
    from shoal.options import Data
    from shoal.runs import registry
    from shoal.types import NO_ENV

    algorithm = registry.load(name)
    command = f"shoal {command} {name}"
    typed = read(words, [*others, algorithm.Config], command)
    config = typed.make(algorithm.Config)
    if typed.help and isinstance(config, Data) and config.data is None and config.env == NO_ENV:
        _print_help(algorithm, config, command, others, "--data DATASET")
    config = with_dataset(config)
    env = describe_task(config)
    config = apply_preset(config, algorithm.PRESETS, env.kind)
    if typed.help:
        _print_help(algorithm, config, command, others, f"--env {env.name}")
    return algorithm, env, config, typed


def _print_help(algorithm: Algorithm, config: Any, command: str, others: Sequence[type[Any]], example: str) -> NoReturn:
    """Every option, with the values of this config."""
    description = (sys.modules[algorithm.Config.__module__].__doc__ or "").partition("\n")[0]
    description += " Options may stand in a file: --config run.toml." if RunOptions in others else ""
    parts = [others[0](), config, *(other() for other in others[1:])]
    print_help(command, description, *parts, examples=(f"{command} {example} --seed 1",))


def warm(words: Sequence[str]) -> None:
    """Start importing torch for the nodes while this process parses and imports too."""
    if peek(words, "runtime", "local") == "local" and not any(word in HELP for word in words):
        from shoal.runtime.local import run

        run.warm()
