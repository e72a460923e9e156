"""What commands share that take an algorithm: its name, its config as it was typed, and an early start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.commands.common import OK, USAGE, print_help
from shoal.config import apply_preset
from shoal.errors import UserError
from shoal.experiment.arguments import HELP, Typed, peek, read
from shoal.experiment.options import RunOptions

if TYPE_CHECKING:
    from shoal.envs import EnvSpec
    from shoal.experiment.registry import Algorithm


def take_algorithm(command: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The algorithm's name, which is the first word, and the rest."""
    from shoal.experiment import registry

    if not words or words[0] in HELP:
        print(f"usage: shoal {command} ALGORITHM [OPTIONS]\n\n{algorithm_lines(registry.names())}\n")
        print(f"shoal {command} ALGORITHM --help shows options.")
        raise SystemExit(OK if words else USAGE)
    if words[0].startswith("-"):
        raise UserError(f"shoal {command} needs an algorithm first: shoal {command} impala {' '.join(words)}")
    registry.check_name(words[0])
    return words[0], words[1:]


def algorithm_lines(names: Sequence[str]) -> str:
    """Each with its one line, in the terminal's width."""
    from shoal.experiment import registry
    from shoal.experiment.usage import in_columns

    return "\n".join(line for name in names for line in in_columns(name, registry.description(name), 11))


def configure(
    command: str, name: str, words: Sequence[str], *others: type[Any]
) -> tuple[Algorithm, EnvSpec, Any, Typed]:
    """The algorithm, its environment, its finished config (defaults, then the preset, then what was typed), and all
    that was typed."""
    from shoal.experiment import registry
    from shoal.experiment.environments import describe_env

    algorithm = registry.load(name)
    command = f"shoal {command} {name}"
    typed = read(words, [*others, algorithm.Config], command)
    config = typed.make(algorithm.Config)
    env = describe_env(config)
    config = apply_preset(config, algorithm.PRESETS, env.kind)
    if typed.help:
        description = (sys.modules[algorithm.Config.__module__].__doc__ or "").partition("\n")[0]
        description += " Options may stand in a file: --config run.toml." if RunOptions in others else ""
        print_help(command, description, config, *(other() for other in others))
    return algorithm, env, config, typed


def warm(words: Sequence[str]) -> None:
    """Start importing torch for the nodes while this process parses and imports too."""
    if peek(words, "runtime", "local") == "local" and not any(word in HELP for word in words):
        from shoal.runtime.local import run

        run.warm()
