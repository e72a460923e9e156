"""Commands on datasets: `shoal data import`, `check`, `show` and `export`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from shoal.arguments.words import HELP
from shoal.cli.commands.common import ERROR, OK, USAGE, Commands, fit, parse, print_json, warn
from shoal.config import Count, NamedValues
from shoal.errors import UserError, did_you_mean

OVERVIEW = """\
usage: shoal data COMMAND …

  import SOURCE --output DATASET  convert once what others have written
  check DATASET                   whether it is what it says
  show DATASET                    what is in it
  export DATASET --output TARGET  as Minari, Parquet or .npz

SOURCE is a Minari id or folder, a folder of Parquet files, an .npz file of
D4RL's layout, or module:function of yours that yields episodes. DATASET is a
folder. Every command has --help.

For example:
  shoal data import logs.npz --output logs --env Hopper-v5
  shoal data check logs --env Hopper-v5
  shoal data show logs"""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What becomes of it."""

    output: str | None = None
    """The dataset: a new folder, or one whose import was interrupted."""
    env: str | None = None
    """module:factory or id of the environment whose spaces the data have; default: what the data tell."""
    env_options: NamedValues | None = None
    """An option of that environment."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What it is compared with."""

    env: str | None = None
    """module:factory or id of the environment in which episodes are played again; default: none."""
    env_options: NamedValues | None = None
    """An option of that environment."""
    episodes: Count = 100
    """That are played again, spread over the dataset."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """How it is shown."""

    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is written."""

    output: str | None = None
    """minari:ID, NAME.npz, or a new folder for Parquet files."""
    format: Literal["hdf5", "arrow", "parquet"] | None = None
    """Of a Minari dataset's files; without it hdf5."""


def run_data(words: Sequence[str]) -> int:
    if not words or words[0] in HELP:
        print(OVERVIEW)
        return OK if words else USAGE
    if words[0] not in PARTS:
        raise UserError(f"There is no command data {words[0]}: see shoal data --help.{did_you_mean(words[0], PARTS)}")
    return PARTS[words[0]](words[1:])


def _import(words: Sequence[str]) -> int:
    description = "Convert a dataset of others into one that runs read directly; it streams, and can be interrupted."
    options, (source,) = parse(words, "shoal data import", description, ImportOptions, "SOURCE")
    if options.output is None:
        raise UserError("shoal data import needs --output: a new folder for the dataset.")
    _check_options(options)
    from shoal.data import open_dataset
    from shoal.data.importing import import_dataset
    from shoal.experiment.environments import spaces_of

    given = None if options.env is None else partial(spaces_of, options.env, options.env_options)
    made = open_dataset(import_dataset(source, options.output, given=given, tell=warn))
    if options.json:
        print_json({"path": str(made.path), "episodes": len(made), "steps": made.steps})
    else:
        print(f"{len(made):,} episodes, {made.steps:,} steps\n→ {made.path}")
    return OK


def _check_options(options: ImportOptions | CheckOptions) -> None:
    if options.env is None and options.env_options:
        raise UserError("--env-option is of the environment that --env names: give both.")


def _check(words: Sequence[str]) -> int:
    description = "Look at every row of a dataset, and with --env play episodes again with their seeds and actions."
    options, (source,) = parse(words, "shoal data check", description, CheckOptions, "DATASET")
    _check_options(options)
    from shoal.data import open_dataset
    from shoal.data.checking import check
    from shoal.data.fitting import check_fits

    data, spec = open_dataset(source), None
    if options.env is not None:
        from shoal.envs import describe

        spec = describe(options.env, options.env_options)
        check_fits(data, spec)
    found = check(data, spec, options.episodes)
    good = found.good and found.reproduced == found.replayed
    if options.json:
        print_json(dataclasses.asdict(found) | {"good": good})
        return OK if good else ERROR
    print(f"{data.path}: {found.episodes:,} episodes, {found.steps:,} steps")
    if found.replayed:
        print(f"  {found.reproduced:,} of {found.replayed:,} episodes came out the same when they were played again")
    for text in (*found.complaints, *([found.first_difference] if found.first_difference else [])):
        print(fit(f"  wrong: {text}", sys.stdout))
    for text in found.notes:
        print(fit(f"  note: {text}", sys.stdout))
    print("  nothing is wrong with it" if good else "  it should be mended before it is learned from")
    return OK if good else ERROR


def _show(words: Sequence[str]) -> int:
    description = "What is in a dataset: episodes, returns, spaces, and how the actions are spread."
    options, (source,) = parse(words, "shoal data show", description, ShowOptions, "DATASET")
    from shoal.data import open_dataset, prepare
    from shoal.data.showing import lines, summary

    data = open_dataset(prepare(source, tell=warn))
    if options.json:
        print_json(summary(data))
    else:
        print("\n".join(lines(data)))
    return OK


def _export(words: Sequence[str]) -> int:
    description = "Write a dataset as others read it."
    options, (source,) = parse(words, "shoal data export", description, ExportOptions, "DATASET")
    if options.output is None:
        raise UserError("shoal data export needs --output: minari:ID, NAME.npz, or a new folder for Parquet files.")
    from shoal.data import open_dataset
    from shoal.data.exporting import export
    from shoal.data.minari import PREFIX

    if options.format is not None and not options.output.startswith(PREFIX):
        raise UserError("--format is of Minari's files: give --output minari:ID, or leave it out.")
    print(f"→ {export(open_dataset(source), options.output, options.format or 'hdf5')}")
    return OK


PARTS: dict[str, Callable[[Sequence[str]], int]] = {
    "import": _import,
    "check": _check,
    "show": _show,
    "export": _export,
}
COMMANDS: Commands = {
    "data": (run_data, ()),
    "data check": (_check, (CheckOptions,)),
    "data export": (_export, (ExportOptions,)),
    "data import": (_import, (ImportOptions,)),
    "data show": (_show, (ShowOptions,)),
}
