"""What a run directory says of a run, and the algorithm and config that are made of it again, also elsewhere."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal import config
from shoal.envs import EnvSpec
from shoal.envs.space_records import to_record
from shoal.errors import UserError, name_of
from shoal.factories import folder_of, importable_name
from shoal.options import Acting
from shoal.runs import directory, registry
from shoal.runs.registry import Algorithm
from shoal.runs.trust import admit

NOT_PLAYED = ("pattern",)  # fields that only training needs
OF_ENVIRONMENT = ("env", "env_options", "eval_env_options")  # fields that only who plays needs


def record_of(algorithm: str, cfg: Acting, env: EnvSpec, options: Any) -> dict[str, Any]:
    """Functions and classes are recorded by name, and with them the folders in which their modules were found. With the
    spaces a policy can be rebuilt where the environment is not installed."""
    values = config.values(cfg)
    named = {name: recorded_value(value) for name, value in values.items() if callable(value)}
    strings = [value for value in (values | named).values() if isinstance(value, str)]
    modules = [value.partition(":")[0] for value in strings if ":" in value]
    if not algorithm.endswith(".py") and registry.is_own(algorithm):
        modules.append(algorithm)
    return {
        "algorithm": registry.lasting_name(algorithm),
        "env": env.name,
        "seed": options.seed,
        "preset": cfg.preset,
        "kind": env.kind,
        "spaces": {
            "observation": to_record(env.observation_space),
            "action": to_record(env.action_space),
            "native_action": to_record(env.native_action_space or env.action_space),
            "stack": env.stack,
        },
        "config": {name: recorded_value(value) for name, value in values.items()},
        "folders": sorted({folder for module in modules if (folder := folder_of(module)) is not None}),
        "lost": lost_fields(cfg),
        "options": dataclasses.asdict(options),
        "command": list(sys.argv),
    }


def recorded_value(value: Any) -> Any:
    """A config's value as a run directory has it: functions and classes by name, numpy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {name: _recorded_part(part) for name, part in value.items()}
    return importable_name(value) or name_of(value) if callable(value) else value


def _recorded_part(value: Any) -> Any:
    """Of an environment's options, however deep."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: _recorded_part(part) for name, part in value.items()}
    return type(value)(map(_recorded_part, value)) if type(value) in (list, tuple) else value


def lost_fields(cfg: Acting) -> list[str]:
    """Fields whose functions or classes cannot be found again by name, and options that no file can hold."""
    return [name for name, value in config.values(cfg).items() if _is_lost(value)]


def _is_lost(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not _is_plain(recorded_value(value))
    return callable(value) and importable_name(value) is None


def _is_plain(value: Any) -> bool:
    """Whether it comes back from a file: text, truths, finite numbers, and lists and tables of these."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def lost_note(cfg: Acting) -> str | None:
    """What the user should know at the start of a run that cannot be rebuilt from its directory alone."""
    lost = {name: value for name, value in config.values(cfg).items() if _is_lost(value)}
    tables = [name for name, value in lost.items() if isinstance(value, Mapping)]
    if tables:
        return (
            f"{' and '.join(tables)} {'hold' if len(tables) > 1 else 'holds'} what no file can hold: to go on with "
            "this run later, or to play it, it must be given again, or be made by a module:factory of yours"
        )
    if not lost:
        return None
    which = " and ".join(f"{name} {name_of(value)}" for name, value in lost.items())
    options = " ".join(f"{config.option(name)} module:factory" for name in lost if name not in NOT_PLAYED)
    them = "it" if len(lost) == 1 else "them"
    return (
        f"{which} cannot be imported by name: to go on with this run later, or to play it, put {them} into a module "
        f"and say so" + (f", as in shoal eval RUN {options}" if options else "")
    )


def rebuild(
    path: Path, given: Mapping[str, Any], unneeded: Sequence[str] = (), *, trust: bool = False, named: bool = False
) -> tuple[str, Algorithm, Acting]:
    """The algorithm's name, its module and its config out of a run directory, with values that are `given` now. Fields
    that are `unneeded` may be names of what cannot be found. Code that a run of others names needs `trust`,
    but for the algorithm where the user has `named` it."""
    record = directory.read_config(path)
    file = path / directory.CONFIG
    needed = [name for name in record["config"] if name not in given and name not in unneeded]
    admit(path, record, [*needed, *([] if named else ["algorithm"])], trust)
    values = record["config"] | dict(given)
    for field in record.get("lost") or []:
        if values.get(field) is not None and field not in given and field not in unneeded:
            raise UserError(_lost_sentence(path, record, field))
    algorithm = registry.load(record["algorithm"])
    for field in given:
        if field not in record["config"]:
            raise UserError(f"{record['algorithm']} has no option {config.option(field)}: leave it out.")
    cfg = config.from_record(algorithm.Config, values)
    try:
        config.validate(cfg)
    except UserError as error:
        raise UserError(f"{file} cannot be used: {error}") from None
    return record["algorithm"], algorithm, cfg


def admit_algorithm(path: Path, trust: bool) -> str:
    """The name of a run's algorithm, which may be imported."""
    record = directory.read_config(path)
    admit(path, record, ["algorithm"], trust)
    return str(record["algorithm"])


def admit_fields(path: Path, fields: Sequence[str], trust: bool) -> None:
    """Let code be found that a run names in these fields; one sentence where it was not made here, or cannot be found
    again."""
    admit(path, directory.read_config(path), fields, trust)
    refuse_lost(path, fields)


def refuse_lost(path: Path, fields: Sequence[str]) -> None:
    """One sentence where what a run had in one of these fields cannot be found again."""
    record = directory.read_config(path)
    for field in record.get("lost") or []:
        if field in fields:
            raise UserError(_lost_sentence(path, record, field))


def _lost_sentence(path: Path, record: Mapping[str, Any], field: str) -> str:
    if isinstance(record["config"].get(field), Mapping):
        return (
            f"The {field} of {path}, {record['config'][field]}, held what no file can hold: give them again, in Python "
            f"or as {config.option(field)} key=value."
        )
    return (
        f"The {field} of {path}, {record['config'].get(field)}, was not in a module and cannot be imported: "
        f"give it again, in Python as {field}=…, or put it into one and give {config.option(field)} module:factory."
    )
