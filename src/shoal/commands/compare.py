"""`shoal compare`: returns of several settings over their seeds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.commands.common import OK, parse, print_json, warn
from shoal.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How runs are put together."""

    by: str | None = None
    """Fields of configs with commas between; default: those in which the runs differ."""
    where: str | None = None
    """Only runs with name=value, with commas between: state=finished."""
    json: bool = False
    """Print one JSON array."""


OPTIONS = (CompareOptions,)


def run(words: Sequence[str]) -> int:
    description = (
        "Last evaluated returns of runs, put together over seeds: the interquartile mean and its 95 % bootstrap "
        "interval, and the seconds to the target."
    )
    typed = parse(words, "shoal compare", description, CompareOptions, "RUN...")
    options: CompareOptions = typed.make(CompareOptions)
    if not typed.words:
        raise UserError("shoal compare needs runs, or folders of runs: shoal compare runs/A runs/B [--by FIELD]")
    from shoal.experiment.run_lists import chosen, find_runs, grouped
    from shoal.experiment.tables import aligned

    found, strange = find_runs([Path(word) for word in typed.words])
    for sentence in strange:
        warn(f"left out: {sentence}")
    runs = [one for one in chosen(found, _parts(options.where)) if one.eval_return is not None]
    if not runs:
        raise UserError("There is nothing to compare: no run among these has an evaluation.")
    by = _parts(options.by)
    if unknown := [name for name in by if not any(name in one.config or name in one.options for one in runs)]:
        raise UserError(f"--by {unknown[0]} is no field of these runs: see shoal config RUN.")
    groups = sorted((statistics(label, group) for label, group in grouped(runs, by).items()), key=_order)
    if options.json:
        print_json(groups)
        return OK
    rows = [["task", "setting", "runs", "return (IQM)", "95 % interval", "target reached", "seconds to it"]]
    for group in groups:
        interval = f"{group['low']:,.1f} … {group['high']:,.1f}" if group["runs"] > 1 else "–"
        seconds = "–" if group["seconds_to_target"] is None else f"{group['seconds_to_target']:,.1f}"
        reached = f"{group['reached']} of {group['aimed']}" if group["aimed"] else "–"
        rows.append(
            [group["env"], group["setting"], str(group["runs"]), f"{group['iqm']:,.1f}", interval, reached, seconds]
        )
    print("\n".join(aligned(rows)))
    return OK


def statistics(label: tuple[str, ...], group: Sequence[Any]) -> dict[str, Any]:
    from shoal.experiment.run_lists import bootstrap_interval, interquartile_mean

    returns = [one.eval_return for one in group]
    low, high = bootstrap_interval(returns)
    times = [one.summary.get("seconds_to_target") for one in group]
    known = [float(value) for value in times if isinstance(value, int | float)]
    return {
        "env": label[0],
        "setting": " ".join(label[1:]),
        "runs": len(group),
        "iqm": interquartile_mean(returns),
        "low": low,
        "high": high,
        "returns": returns,
        "aimed": sum(one.options.get("stop_return") is not None for one in group),
        "reached": len(known),
        "seconds_to_target": interquartile_mean(known) if known else None,
    }


def _order(group: dict[str, Any]) -> tuple[str, float]:
    return group["env"], -group["iqm"]


def _parts(text: str | None) -> list[str]:
    return [part.strip().replace("-", "_") if "=" not in part else part for part in text.split(",")] if text else []
