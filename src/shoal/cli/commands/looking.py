"""Commands that look at runs: `shoal runs`, `status`, `diff`, `config`, `compare` and `plot`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.cli.commands.common import OK, Commands, parse, print_json, terminal_width, warn
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.runs.run_lists import RunState

MARGIN = 9  # columns before what `shoal status` tells


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """Which, and in what order."""

    sort: Literal["began", "return", "steps", "seconds", "name"] = "began"
    """Largest or newest first; names from A."""
    where: str | None = None
    """name=value with commas between: state=running, env=CartPole-v1, learning_rate=0.001."""
    json: bool = False
    """Print one JSON array."""


def run_runs(words: Sequence[str]) -> int:
    description = "List runs with their state: running, finished, interrupted, failed, crashed (killed)."
    options, words = parse(words, "shoal runs", description, RunsOptions, "[FOLDER...]")
    if not words and not Path("runs").is_dir():
        raise UserError("There is no folder runs here: give the folder that holds your runs.")
    from shoal.analysis.grouping import chosen
    from shoal.runs.run_lists import age, find_runs
    from shoal.runs.tables import folded

    found, strange = find_runs([Path(word) for word in words] or [Path("runs")])
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


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """How it is told."""

    json: bool = False
    """Print one JSON object."""


def run_status(words: Sequence[str]) -> int:
    description = "Tell how a run stands, also while it is running."
    options, words = parse(words, "shoal status", description, StatusOptions, "RUN")
    path = Path(words[0])
    from shoal.runs.run_lists import state_of
    from shoal.runs.tables import flat, latest

    found = state_of(path)
    rows = {kind: flat(row) for kind, row in latest(path).items()}
    if options.json:
        names = ("algorithm", "env", "seed", "state", "resumable", "stopped_by", "eval_return", "env_steps", "seconds")
        print_json({"run": str(path), **{name: getattr(found, name) for name in names}, "latest": rows})
        return OK
    machines = latest(path).get("progress", {}).get("machines") or {}
    print("\n".join([*status_lines(found, rows, terminal_width()), *_machine_lines(machines)]))
    return OK


def status_lines(found: RunState, rows: dict[str, dict[str, Any]], width: int | None = None) -> list[str]:
    from shoal.analysis.measures import measures, packed
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


def _machine_lines(machines: dict[str, str]) -> list[str]:
    """Of a run on a cluster: which node is where."""
    return [f"{'machine':{MARGIN}}{name}: {nodes}" for name, nodes in sorted(machines.items())]


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


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """How it is told."""

    json: bool = False
    """Print one JSON object."""


def run_diff(words: Sequence[str]) -> int:
    description = "Config, options, versions and results in which two runs differ."
    options, words = parse(words, "shoal diff", description, DiffOptions, "RUN RUN")
    if len(words) != 2:
        raise UserError("shoal diff needs two run directories: shoal diff runs/A runs/B")
    from shoal.runs.run_lists import differences
    from shoal.runs.tables import aligned

    one, other = map(Path, words)
    found = differences(one, other)
    if options.json:
        print_json({heading: {name: list(pair) for name, pair in parts.items()} for heading, parts in found.items()})
        return OK
    rows = [["", str(one), str(other)]]
    for heading, parts in found.items():
        rows += [[f"{heading} {name}", _cell(first), _cell(second)] for name, (first, second) in parts.items()]
    lines = aligned(rows)
    width = terminal_width()
    if width is not None and max(map(len, lines)) > width:
        lines = [f"A  {one}", f"B  {other}", *aligned([["", "A", "B"], *rows[1:]])]
    print("\n".join(lines) if len(rows) > 1 else "they do not differ")
    return OK


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """None: what is printed is TOML."""


def run_config(words: Sequence[str]) -> int:
    description = "Print a run's config as a file: shoal config RUN > run.toml, then shoal train --config run.toml."
    _, words = parse(words, "shoal config", description, ConfigOptions, "RUN")
    from shoal.arguments.config_files import run_as_toml

    print(run_as_toml(Path(words[0])), end="")
    return OK


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How runs are put together."""

    by: str | None = None
    """Fields of configs with commas between; default: those in which the runs differ."""
    where: str | None = None
    """Only runs with name=value, with commas between: state=finished."""
    target: float | None = None
    """The return to which steps and seconds are counted, at the first evaluation that has it; default: each run's own
    --stop-return, confirmed."""
    output: str | None = None
    """A picture of it; its ending says the format: png, svg, pdf, …"""
    json: bool = False
    """Print one JSON array."""


def run_compare(words: Sequence[str]) -> int:
    description = (
        "Last evaluated returns of runs, put together over seeds: the interquartile mean and its 95 % bootstrap "
        "interval, and steps and seconds to the target."
    )
    options, words = parse(words, "shoal compare", description, CompareOptions, "RUN...")
    if not words:
        raise UserError("shoal compare needs runs, or folders of runs: shoal compare runs/A runs/B [--by FIELD]")
    from shoal.analysis import comparisons, grouping
    from shoal.runs.run_lists import find_runs

    found, strange = find_runs([Path(word) for word in words])
    for sentence in strange:
        warn(f"left out: {sentence}")
    runs = [one for one in grouping.chosen(found, options.where) if one.eval_return is not None]
    if not runs:
        raise UserError("There is nothing to compare: no run among these has an evaluation.")
    by = grouping.words(options.by)
    for name in grouping.put_together(group for groups in grouping.grouped(runs, by).values() for group in groups):
        warn(f"runs of one setting differ in {name}: --by {','.join([*by, name])} tells them apart")
    tasks = comparisons.compare(runs, by, options.target)
    if options.output is not None:
        comparisons.draw(tasks, Path(options.output))
    if options.json:
        print_json([one.as_dict() for settings in tasks.values() for one in settings])
        return OK
    print("\n".join(comparisons.lines(tasks, terminal_width())))
    if options.output is not None:
        print(f"→ {options.output}")
    return OK


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """What is drawn."""

    output: str = "curve.png"
    """The picture; its ending says the format: png, svg, pdf, …"""
    by: str | None = None
    """Fields of configs with commas between, a curve for each of their values; default: those in which runs differ."""
    where: str | None = None
    """Only runs with name=value, with commas between: state=finished,unroll=5."""


def run_plot(words: Sequence[str]) -> int:
    description = (
        "Draw returns against steps and seconds: a panel for each task, a curve for each setting, the interquartile "
        "mean over its seeds with a 95 % interval."
    )
    options, words = parse(words, "shoal plot", description, PlotOptions, "RUN...")
    if not words:
        raise UserError("shoal plot needs run directories: shoal plot runs/A runs/B [--output curve.png]")
    from shoal.analysis.plots import draw

    runs = [Path(word) for word in words]
    for label in draw(runs, Path(options.output), warn, options.by, options.where):
        print(label)
    print(f"→ {options.output}")
    return OK


COMMANDS: Commands = {
    "runs": (run_runs, (RunsOptions,)),
    "status": (run_status, (StatusOptions,)),
    "diff": (run_diff, (DiffOptions,)),
    "config": (run_config, (ConfigOptions,)),
    "compare": (run_compare, (CompareOptions,)),
    "plot": (run_plot, (PlotOptions,)),
}
