"""Which runs may run the code that they name: those that were made here, and those that the user has said to trust.

A run's config names code: its algorithm's file, `module:factory` of an environment or a network, folders in which they
are looked for. Rebuilding the run runs it. Whoever has made the run on this account has run it before; a run that came
from elsewhere, or whose config was changed since, could name anything. What was made or trusted here is remembered by a
digest of what it names, in a file of the user's own: nothing that lies in a run directory can stand for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.factories import look_in
from shoal.runs import registry

DEVICES = ("device", "acting_device")  # fields whose "cuda:0" is no module and factory
OPTIONS = ("env_options", "eval_env_options")  # what a named environment is called with


def named_code(record: Mapping[str, Any]) -> dict[str, Any]:
    """By field: what of a run's config is the name of code that is not Shoal's or of a Gymnasium id."""
    values = {name: value for name, value in record["config"].items() if name not in DEVICES}
    found = {name: value for name, value in values.items() if any(map(_is_name, _strings(value)))}
    return found | ({"algorithm": record["algorithm"]} if registry.is_own(record["algorithm"]) else {})


def admit(run: Path, record: Mapping[str, Any], needed: Iterable[str], trust: bool) -> None:
    """Let the code that a run names be found, where it was made here or is trusted; refuse otherwise if one of the
    fields that are `needed` names any."""
    named = named_code(record)
    if not named:
        return
    if trust:
        remember(record)
    elif _digest(record) not in _remembered():
        asked = [f"{name} {named[name]}" for name in needed if name in named]
        if asked:
            raise UserError(
                f"{run} was not made on this account, or was changed since, and would run code that it names: "
                f"{', '.join(asked)}{_places(record)}. Give --trust (in Python trust=True) if you trust it; it is "
                "asked once."
            )
        return
    look_in(_folders(record))


def remember(record: Mapping[str, Any]) -> str | None:
    """Write down that a run was made or trusted here; why it could not be, if so."""
    try:
        if not named_code(record) or (digest := _digest(record)) in _remembered():
            return None
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a", encoding="utf-8") as out:
            out.write(f"{digest} {json.dumps(named_code(record), default=str)}\n")
    except (OSError, RuntimeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def _digest(record: Mapping[str, Any]) -> str:
    """Of what is named, where it is looked for, and what an environment is called with."""
    called = {name: record["config"].get(name) for name in OPTIONS}
    text = json.dumps([named_code(record), _folders(record), called], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _remembered() -> set[str]:
    try:
        lines = _file().read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError):
        return set()
    return {line.partition(" ")[0] for line in lines}


def _file() -> Path:
    """Outside of every run; RuntimeError where the account has no home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "shoal" / "trusted"


def _folders(record: Mapping[str, Any]) -> list[str]:
    return [folder for folder in record.get("folders") or [] if isinstance(folder, str)]


def _places(record: Mapping[str, Any]) -> str:
    folders = _folders(record)
    return f", looked for in {' and '.join(folders)}" if folders else ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for part in value.values() for text in _strings(part))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in _strings(part))


def _is_name(text: str) -> bool:
    return ":" in text
