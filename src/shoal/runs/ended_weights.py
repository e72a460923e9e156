"""The weights with which a run has ended, and what it had counted by then: where it goes on without a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.checkpoints.own_files import Replacing
from shoal.checkpoints.state_files import plain
from shoal.errors import UserError
from shoal.runs import directory
from shoal.runs.tables import flat, is_number, latest, parse_row

COUNTED = ("env_steps", "trained_steps", "refused_updates")  # of a summary, by their names among the metrics


@dataclass(frozen=True)
class EndedWeights:
    """weights.npz, with the counts of the summary that was written after it."""

    run: Path
    updates: int
    summary: Mapping[str, Any]

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a checkpoint would say of the run as it ended, and the state of its metrics."""
        size = self.summary.get("metrics_bytes")
        size = size if isinstance(size, int) and size >= 0 else _size(self.run / directory.METRICS)
        rows = self._rows(size)
        judged = [row for row in rows if row.get("kind") == "evaluation" and is_number(row.get("eval_return"))]
        progress = [row for row in rows if row.get("kind") == "progress" and isinstance(row.get("counts"), dict)]
        last = progress[-1] if progress else {"counts": {}}
        counts = {name: value for name, value in last["counts"].items() if is_number(value)}
        for name in COUNTED:
            counts[name] = max(counts.get(name, 0.0), float(_whole(self.summary.get(name))))
        counts["learner_steps"] = float(self.updates)
        seconds = next(
            (value for value in (last.get("seconds"), self.summary.get("train_seconds")) if is_number(value)), 0.0
        )
        evaluation = {name: value for name, value in judged[-1].items() if name != "kind"} if judged else None
        meta = {
            "updates": self.updates,
            "env_steps": int(counts["env_steps"]),
            "seconds": seconds,
            "evaluations": len(judged),
            "evaluation": evaluation,
            "best": max((row["eval_return"] for row in judged), default=None),
            "metrics_bytes": size,
        }
        metrics = {"counts": counts, "values": {}, "notes": [], "evaluations": len(judged), "train_seconds": seconds}
        return meta, metrics

    def keep_aside(self) -> str:
        """Under a name that no run writes over; that name."""
        name = f"weights-{self.updates}.npz"
        try:
            if not os.path.lexists(self.run / name):
                with open(plain(self.run / directory.WEIGHTS), "rb") as old, Replacing(self.run / name) as new:
                    shutil.copyfileobj(old, new)
        except OSError as error:
            raise UserError(
                f"{self.run / directory.WEIGHTS} is of more updates than the newest checkpoint, and cannot be kept as "
                f"{name} ({error.strerror}): move it away first."
            ) from None
        return name

    def _rows(self, size: int) -> list[dict[str, Any]]:
        try:
            with open(plain(self.run / directory.METRICS), "rb") as file:
                lines = file.read(size).decode(errors="replace").splitlines()
        except OSError:
            return []
        return [row for row in map(parse_row, lines) if row is not None]


def read(run: Path) -> EndedWeights | None:
    """None where a run has not ended with weights. Without a summary, as of one that was killed before it was written,
    the metrics have to say how many updates were made."""
    if not os.path.lexists(run / directory.WEIGHTS):
        return None
    summary = read_summary(run)
    counted = flat(latest(run).get("progress", {})).get("learner_steps")
    return EndedWeights(run, _whole(summary.get("saved_version", counted)), summary)


def updates_of(run: Path) -> int:
    """How many updates a run had made when it ended; 0 where it has not, or does not say."""
    return _whole(read_summary(run).get("learner_steps"))


def read_summary(run: Path) -> dict[str, Any]:
    """The summary with which a run has ended; empty where there is none, or none that can be read."""
    return _object(run / directory.SUMMARY)


def lived_on(run: Path, summary: Mapping[str, Any]) -> bool:
    """Whether a run has gone on since it ended with this summary."""
    lives = _object(run / directory.CONFIG).get("life"), summary.get("life")
    return all(map(is_number, lives)) and _whole(lives[0]) > _whole(lives[1])


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(plain(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: Any) -> int:
    return int(value) if is_number(value) and value >= 0 else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
