"""`shoal status`: how a run stands, from another terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.analysis.measures import measures, packed
from shoal.cli.commands.common import OK, one_run, parse, print_json, terminal_width

if TYPE_CHECKING:
    from shoal.runs.run_lists import RunState

MARGIN = 9  # columns before what is told


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """How it is told."""

    json: bool = False
    """Print one JSON object."""


OPTIONS = (StatusOptions,)


def run(words: Sequence[str]) -> int:
    typed = parse(words, "shoal status", "Tell how a run stands, also while it is running.", StatusOptions, "RUN")
    path = Path(one_run(typed, "shoal status"))
    from shoal.runs.run_lists import state_of
    from shoal.runs.tables import flat, latest

    found = state_of(path)
    rows = {kind: flat(row) for kind, row in latest(path).items()}
    if typed.make(StatusOptions).json:
        names = ("algorithm", "env", "seed", "state", "resumable", "stopped_by", "eval_return", "env_steps", "seconds")
        print_json({"run": str(path), **{name: getattr(found, name) for name in names}, "latest": rows})
        return OK
    print("\n".join(lines(found, rows, terminal_width())))
    return OK


def lines(found: RunState, rows: dict[str, dict[str, Any]], width: int | None = None) -> list[str]:
    from shoal.runs.run_lists import numbers
    from shoal.runs.tables import is_number

    progress, judged = (numbers(rows.get(kind, {})) for kind in ("progress", "evaluation"))
    told = found.state + (f" (stopped by {found.stopped_by})" if found.stopped_by else "")
    if found.state == "running":
        told += f", last heard of {max(0.0, time.time() - _changed(found.path)):.0f} s ago"
    updates = found.summary.get("learner_steps", progress.get("learner_steps"))
    learns_only = bool(is_number(updates) and updates and not found.env_steps)  # from data, without a step
    word, count = ("updates", updates) if learns_only else ("steps", found.env_steps)
    facts = [
        ("run", f"{found.algorithm} on {found.env}, seed {found.seed}"),
        ("state", told),
        (word, f"{count:,.0f} in {found.seconds:,.0f} s of training"),
    ]
    if "actors" in progress:
        facts.append(("actors", f"{progress['actors']:,.0f}"))
    if found.state == "running" and "env_steps_per_second" in progress:
        facts.append(("now", f"{progress['env_steps_per_second']:,.0f} steps/s"))
    if "eval_return" in judged and (at := judged.get("version" if learns_only else "env_steps")) is not None:
        told = f"{judged['eval_return']:,.1f} ± {judged.get('spread', 0.0):,.1f} at {at:,} {word}"
        facts.append(("return", told))
    facts += [("towards", text) for text in _towards(found, progress)]
    if progress.get("restarts"):
        facts.append(("restarts", f"{progress['restarts']:,.0f} of nodes that were lost"))
    room = (width or math.inf) - MARGIN
    facts += [(name, f"\n{'':{MARGIN}}".join(packed(told, room))) for name, told in measures(progress).items()]
    if found.resumable:
        facts.append(("go on", f"shoal resume {found.path}"))
    return [f"{name:{MARGIN}}{text}" for name, text in facts]


def _towards(found: RunState, progress: dict[str, Any]) -> list[str]:
    """How far each stop rule is."""
    from shoal.runs.tables import is_number

    options, updates = found.options, found.summary.get("learner_steps", progress.get("learner_steps"))
    done = {"stop_return": found.eval_return, "stop_steps": found.env_steps, "stop_seconds": found.seconds}
    done["stop_updates"] = updates
    return [
        f"{name.removeprefix('stop_')} {_rounded(value)} of {options[name]:,.6g}"
        for name, value in done.items()
        if is_number(options.get(name)) and is_number(value)
    ]


def _rounded(value: float) -> str:
    """With as many digits as are worth reading."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _changed(path: Path) -> float:
    try:
        return (path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return time.time()
