"""`shoal runs`: a list of runs with their state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.cli.commands.common import OK, parse, print_json, terminal_width, warn
from shoal.errors import UserError


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """Which, and in what order."""

    sort: Literal["began", "return", "steps", "seconds", "name"] = "began"
    """Largest or newest first; names from A."""
    where: str | None = None
    """name=value with commas between: state=running, env=CartPole-v1, learning_rate=0.001."""
    json: bool = False
    """Print one JSON array."""


OPTIONS = (RunsOptions,)


def run(words: Sequence[str]) -> int:
    description = "List runs with their state: running, finished, interrupted, failed, crashed (killed)."
    typed = parse(words, "shoal runs", description, RunsOptions, "[FOLDER...]")
    options: RunsOptions = typed.make(RunsOptions)
    if not typed.words and not Path("runs").is_dir():
        raise UserError("There is no folder runs here: give the folder that holds your runs.")
    from shoal.analysis.grouping import chosen
    from shoal.runs.run_lists import age, find_runs
    from shoal.runs.tables import folded

    found, strange = find_runs([Path(word) for word in typed.words] or [Path("runs")])
    for sentence in strange:
        warn(f"left out: {sentence}")
    keys: dict[str, Any] = {
        "began": lambda one: -one.began,
        "return": lambda one: (one.eval_return is None, -(one.eval_return or 0.0)),
        "steps": lambda one: -one.env_steps,
        "seconds": lambda one: -one.seconds,
        "name": lambda one: str(one.path),
    }
    runs = sorted(chosen(found, options.where), key=keys[options.sort])
    if options.json:
        names = ("algorithm", "env", "seed", "state", "resumable", "stopped_by", "eval_return", "env_steps", "seconds")
        print_json([{"run": str(one.path), **{name: getattr(one, name) for name in names}} for one in runs])
        return OK
    rows = [["run", "state", "return", "steps", "seconds", "began"]]
    for one in runs:
        state = f"{one.state}, resumable" if one.resumable else one.state
        judged = "–" if one.eval_return is None else f"{one.eval_return:,.1f}"
        rows.append(
            [str(one.path), state, judged, f"{one.env_steps:,}", f"{one.seconds:,.0f}", f"{age(one.began)} ago"]
        )
    print("\n".join(folded(rows, terminal_width())) if runs else "no run")
    return OK
