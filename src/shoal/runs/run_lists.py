"""Runs seen from outside: their state, and what differs between two."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.checkpoints.lock import LOCK
from shoal.checkpoints.state_files import plain
from shoal.errors import UserError
from shoal.runs import directory, registry
from shoal.runs.tables import flat, is_number, latest

State = Literal["running", "finished", "interrupted", "failed", "crashed"]
ENDED = {"interrupt": "interrupted", "failure": "failed"}


@dataclass(frozen=True)
class RunState:
    path: Path
    algorithm: str
    env: str
    seed: int
    state: State
    resumable: bool
    stopped_by: str | None
    eval_return: float | None  # the last
    env_steps: int
    seconds: float
    began: float  # seconds since 1970
    config: Mapping[str, Any]
    options: Mapping[str, Any]
    summary: Mapping[str, Any]


def state_of(path: Path) -> RunState:
    """How a run stands; `UserError` for what is none."""
    record = directory.read_config(path)
    summary = _summary(path, record)
    rows = latest(path)
    progress, judged = (numbers(flat(rows.get(kind, {}))) for kind in ("progress", "evaluation"))
    ended = numbers(summary)
    running = is_held(path)
    stopped_by = summary.get("stopped_by")
    if not isinstance(stopped_by, str) or not stopped_by.isprintable():
        stopped_by = None  # no reason that a run gives
    state: Any = "running" if running else ENDED.get(str(stopped_by), "finished") if summary else "crashed"
    kept = any((path / directory.CHECKPOINTS).glob("[0-9]*/manifest.json")) or (path / directory.WEIGHTS).is_file()
    options = record.get("options")
    return RunState(
        path=path,
        algorithm=registry.short_name(record["algorithm"]),
        env=record["env"],
        seed=record.get("seed", 0),
        state=state,
        resumable=kept and state not in ("running", "finished"),
        stopped_by=stopped_by if not running else None,
        eval_return=(ended if "eval_return" in summary else judged).get("eval_return"),
        env_steps=int(ended.get("env_steps", progress.get("env_steps", 0))),
        seconds=float(ended.get("train_seconds", progress.get("seconds", 0.0))),
        began=(path / directory.CONFIG).stat().st_mtime,
        config=record["config"],
        options=options if isinstance(options, dict) else {},
        summary=summary,
    )


def _summary(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Of the run's present life; none where it has gone on since."""
    try:
        summary = json.loads(plain(path / directory.SUMMARY).read_text(encoding="utf-8"))
        return dict(summary) if int(record.get("life", 0)) <= int(summary.get("life", 0)) else {}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What of a row is a finite number: rows of a damaged run may hold anything."""
    return {name: value for name, value in row.items() if is_number(value)}


def is_held(path: Path) -> bool:
    """Whether a process holds the run's lock: asked of the kernel, without taking it."""
    try:
        with plain(path / LOCK).open("rb") as file:
            if sys.platform == "linux":
                asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind: int = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0]
                return kind != fcntl.F_UNLCK
            os.kill(int(json.loads(file.read())["pid"]), 0)
            return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def run_folders(folder: Path) -> list[Path]:
    """The runs in a folder, also below two folders more (sweeps); or the folder itself where it is one."""
    if (folder / directory.CONFIG).exists():
        return [folder]
    patterns = (f"{pattern}/{directory.CONFIG}" for pattern in ("*", "*/*", "*/*/*"))
    return [file.parent for pattern in patterns for file in sorted(folder.glob(pattern))]


def find_runs(folders: Sequence[Path]) -> tuple[list[RunState], list[str]]:
    """All runs in these folders, or these runs themselves; and what is damaged."""
    found: dict[Path, RunState] = {}
    strange = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"There is no folder {folder}: give one that holds runs.")
        for path in run_folders(folder):
            try:
                found.setdefault(path.resolve(), state_of(path))
            except UserError as error:
                strange.append(str(error))
    return list(found.values()), strange


# ---- two runs --------------------------------------------------------------------------------------------------------


def differences(one: Path, other: Path) -> dict[str, dict[str, tuple[Any, Any]]]:
    """What two runs differ in, by heading: config, options, versions, result."""
    records = [directory.read_config(path) for path in (one, other)]
    states = [state_of(path) for path in (one, other)]
    parts = {
        "run": [{"algorithm": state.algorithm, "env": state.env, "state": state.state} for state in states],
        "config": [dict(record["config"]) for record in records],
        "options": [{**state.options, "run_dir": None} for state in states],
        "versions": [{**(record.get("versions") or {}), "git": record.get("git")} for record in records],
        "result": [_result(state) for state in states],
    }
    return {
        heading: {
            name: (first.get(name), second.get(name))
            for name in dict.fromkeys([*first, *second])
            if first.get(name) != second.get(name)
        }
        for heading, (first, second) in parts.items()
    }


def _result(state: RunState) -> dict[str, Any]:
    names = ("reached", "seconds_to_target", "learner_steps", "env_steps_per_second")
    found = {"eval_return": state.eval_return, "env_steps": state.env_steps, "seconds": round(state.seconds, 1)}
    told = {name: state.summary.get(name) for name in names}
    plain = {name: repr(value) if isinstance(value, str) else value for name, value in told.items()}  # a damaged one
    return {**found, "stopped_by": state.stopped_by, **plain}


def age(began: float) -> str:
    """How long ago: 5 s, 12 min, 3 h, 2 d."""
    seconds = max(0.0, time.time() - began)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
