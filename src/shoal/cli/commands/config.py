"""`shoal config`: a run's config as a file with which it can be started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.commands.common import OK, one_run, parse


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """None: what is printed is TOML."""


OPTIONS = (ConfigOptions,)


def run(words: Sequence[str]) -> int:
    description = "Print a run's config as a file: shoal config RUN > run.toml, then shoal train --config run.toml."
    typed = parse(words, "shoal config", description, ConfigOptions, "RUN")
    from shoal.arguments.config_files import run_as_toml

    print(run_as_toml(Path(one_run(typed, "shoal config"))), end="")
    return OK
