"""The files of a sweep: what was begun, what failed, what was ended early. Results are those of the run directories."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.checkpoints.own_files import Replacing
from shoal.checkpoints.state_files import plain
from shoal.errors import UserError
from shoal.experiment.resuming import finished
from shoal.sweeps.spec import Sweep

IDENTITY, TRIALS, RUNS = "sweep.json", "trials.jsonl", "runs"


@dataclass
class Trial:
    """One setting of the parameters, run with every seed."""

    number: int
    parameters: dict[str, Any]
    failures: dict[int, list[str]] = field(default_factory=dict)  # of each seed, what was said
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # of each seed, its summary
    pruned: bool = False


class SweepLog:
    """Appended to before anything is started, so that a sweep that was killed knows what it had begun."""

    def __init__(self, sweep: Sweep) -> None:
        self.folder = sweep.folder
        self._sweep = sweep
        self.trials: dict[int, Trial] = {}

    def open(self) -> None:
        """Begin, or go on with what is there."""
        identity = json.loads(json.dumps(self._sweep.identity()))
        try:
            (self.folder / RUNS).mkdir(parents=True, exist_ok=True)
            file = self.folder / IDENTITY
            if file.exists():
                self._compare(json.loads(plain(file).read_text(encoding="utf-8")), identity)
            else:
                if not all(_is_ours(entry.name) for entry in self.folder.iterdir()):
                    raise UserError(f"The folder {self.folder} holds other files: give another one.")
                write_whole(file, json.dumps(identity, indent=2) + "\n")
            self._read()
        except OSError as error:
            raise UserError(f"The folder {self.folder} of the sweep cannot be used ({error.strerror}).") from None
        except (ValueError, AttributeError, RecursionError):
            raise UserError(f"{self.folder / IDENTITY} is damaged: give another folder.") from None

    def path(self, number: int, seed: int) -> Path:
        return self.folder / RUNS / f"t{number:04d}-s{seed}"

    def begin(self, number: int, parameters: dict[str, Any]) -> Trial:
        self._append({"trial": number, "parameters": parameters})
        self.trials[number] = Trial(number, parameters)
        return self.trials[number]

    def failed(self, trial: Trial, seed: int, why: str) -> None:
        self._append({"trial": trial.number, "seed": seed, "failed": why})
        trial.failures.setdefault(seed, []).append(why)

    def prune(self, trial: Trial) -> None:
        self._append({"trial": trial.number, "pruned": True})
        trial.pruned = True

    def _append(self, row: Mapping[str, Any]) -> None:
        with (self.folder / TRIALS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        file = self.folder / TRIALS
        text = plain(file).read_text(encoding="utf-8") if file.exists() else ""
        if text and not text.endswith("\n"):  # killed in the middle of a line: it had begun nothing yet
            text = text[: text.rfind("\n") + 1]
            file.write_text(text, encoding="utf-8")
        try:
            for row in map(json.loads, text.splitlines()):
                self._take(row)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{file} is damaged: give another folder.") from None
        for trial in self.trials.values():
            for seed in self._sweep.seeds:
                if (summary := finished(self.path(trial.number, seed))) is not None:
                    trial.results[seed] = summary

    def _take(self, row: dict[str, Any]) -> None:
        number = int(row["trial"])
        if "parameters" in row:
            if set(row["parameters"]) != set(self._sweep.parameters):
                raise ValueError("parameters of another sweep")
            self.trials[number] = Trial(number, dict(row["parameters"]))
        elif "failed" in row:
            self.trials[number].failures.setdefault(int(row["seed"]), []).append(str(row["failed"]))
        elif row.get("pruned"):
            self.trials[number].pruned = True

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for key, value in now.items():
            if before.get(key) != value:
                raise UserError(
                    f"The sweep in {self.folder} was begun with another {key}: give another folder, or the old file."
                )


def _is_ours(name: str) -> bool:
    """Whether a sweep that was killed before it had begun may have left this."""
    return name in (RUNS, "run.lock") or name.startswith(f".{IDENTITY}.")


def write_whole(path: Path, text: str) -> None:
    """Complete or absent."""
    with Replacing(path) as file:
        file.write(text.encode())
