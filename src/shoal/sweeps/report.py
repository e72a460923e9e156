"""What a sweep came to: a table, the best setting as a config file, and how much each parameter mattered."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.analysis.pictures import COLOURS, plain
from shoal.arguments.config_files import as_toml
from shoal.runs.tables import Table, aligned, table
from shoal.sweeps.log import SweepLog, Trial, write_whole
from shoal.sweeps.spec import Choices, Parameter, Sweep

RESULTS, BEST, IMPORTANCE = "results.csv", "best.toml", "importance.png"
ACROSS = 4  # panels beside each other
BINS = 4  # into which the values of a range are put to see what they explain


def value_of(sweep: Sweep, trial: Trial) -> float | None:
    """The mean over seeds; None where one is missing or has no such number."""
    found = [trial.results.get(seed, {}).get(sweep.settings.metric) for seed in sweep.seeds]
    numbers = [float(value) for value in found if isinstance(value, int | float)]
    return float(np.mean(numbers)) if len(numbers) == len(sweep.seeds) else None


def state_of(sweep: Sweep, trial: Trial) -> str:
    if value_of(sweep, trial) is not None:
        return "done"
    if trial.pruned:
        return "pruned"
    if any(len(said) > sweep.settings.retries for said in trial.failures.values()):
        return "failed"
    return "done, without a number" if len(trial.results) == len(sweep.seeds) else "open"


def results(sweep: Sweep, log: SweepLog) -> Table:
    """A row for each trial, the best first."""
    metric, rows = sweep.settings.metric, []
    for trial in log.trials.values():
        found = [summary.get(metric) for summary in trial.results.values()]
        numbers = [value for value in found if isinstance(value, int | float)]
        row: dict[str, Any] = {"trial": trial.number, **trial.parameters, metric: value_of(sweep, trial)}
        row |= {"spread": float(np.std(numbers)) if numbers else None, "runs": len(trial.results)}
        row |= {"state": state_of(sweep, trial), "why": _why(trial)}
        rows.append(row)
    sign = -1.0 if sweep.maximize else 1.0
    rows.sort(key=lambda row: (row[metric] is None, sign * (row[metric] or 0.0), row["trial"]))
    return table(rows)


def _why(trial: Trial) -> str:
    said = [why for each in trial.failures.values() for why in each]
    return said[-1] if said else ""


def lines(found: Table, most: int = 20) -> list[str]:
    """The table as text."""
    names = [name for name in found if name != "why"]
    count = len(found["trial"]) if found else 0
    rows = [names, *([_cell(found[name][index]) for name in names] for index in range(min(count, most)))]
    text = aligned(rows)
    return [*text, f"… and {count - most} more in {RESULTS}"] if count > most else text


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return (
        f"{value:.5g}"
        if isinstance(value, float)
        else " ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )


def best_trial(sweep: Sweep, log: SweepLog) -> Trial | None:
    scored = [(value, trial) for trial in log.trials.values() if (value := value_of(sweep, trial)) is not None]
    if not scored:
        return None
    better = max if sweep.maximize else min
    return better(scored, key=lambda pair: pair[0])[1]


def write(sweep: Sweep, log: SweepLog) -> list[str]:
    """The files of a sweep; what the user is told of them."""
    found = results(sweep, log)
    names = list(found)
    text = io.StringIO()
    csv.writer(text).writerows([names, *zip(*(found[name] for name in names))])
    write_whole(log.folder / RESULTS, text.getvalue())
    told = [f"table: {log.folder / RESULTS}"]
    failed = [trial.number for trial in log.trials.values() if state_of(sweep, trial) == "failed"]
    if failed:
        again = f"retries = {sweep.settings.retries + 1} in [sweep] and the same command try again"
        told.append(f"failed: trial {', '.join(map(str, failed))}; {again}")
    best = best_trial(sweep, log)
    if best is not None:
        score = f"{sweep.settings.metric} {value_of(sweep, best):.6g} in {log.folder}, trial {best.number}"
        write_whole(log.folder / BEST, as_toml(sweep.options(best.parameters), score))
        told.append(f"best config: {log.folder / BEST} (shoal train --config {log.folder / BEST})")
    if _draw(sweep, log, log.folder / IMPORTANCE):
        told.append(f"importance: {log.folder / IMPORTANCE}")
    return told


def importance(sweep: Sweep, log: SweepLog) -> dict[str, float]:
    """Of each parameter the part of the variance between trials that it explains by itself: values in groups, ranges in
    four bins of equal count, corrected for what as many groups would explain by chance (omega squared)."""
    scored = [(trial, value) for trial in log.trials.values() if (value := value_of(sweep, trial)) is not None]
    values = np.array([value for _, value in scored])
    if len(values) < 3 or not values.std():
        return {}
    return {
        name: explained(values, _groups([trial.parameters[name] for trial, _ in scored])) for name in sweep.parameters
    }


def explained(values: Any, groups: Sequence[int]) -> float:
    """Omega squared of a one-way analysis of variance, at least 0."""
    labels = np.asarray(groups)
    kinds = np.unique(labels)
    total = float(((values - values.mean()) ** 2).sum())
    within = float(sum(((values[labels == kind] - values[labels == kind].mean()) ** 2).sum() for kind in kinds))
    if len(kinds) < 2 or len(values) <= len(kinds):
        return 0.0
    error = within / (len(values) - len(kinds))
    return max(0.0, (total - within - (len(kinds) - 1) * error) / (total + error))


def _groups(chosen: Sequence[Any]) -> list[int]:
    kinds = {str(value): None for value in chosen}
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in chosen)
    if not numeric or len(kinds) <= BINS:
        return [list(kinds).index(str(value)) for value in chosen]
    order = np.argsort(np.argsort(np.asarray(chosen, float), kind="stable"), kind="stable")
    return [int(rank * BINS // len(chosen)) for rank in order]


def _draw(sweep: Sweep, log: SweepLog, path: Path) -> bool:
    """A panel with bars, and one for each parameter with the trials' values; False where nothing can be drawn."""
    found = importance(sweep, log)
    if not found or importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    scored = [(trial, value) for trial in log.trials.values() if (value := value_of(sweep, trial)) is not None]
    names = sorted(found, key=lambda name: found[name])
    columns = min(ACROSS, 1 + len(names))
    figure = Figure(figsize=(3.6 * columns, 3.2 * -(-(1 + len(names)) // columns)), layout="constrained")
    bars, *panels = figure.subplots(-(-(1 + len(names)) // columns), columns, squeeze=False).flat
    bars.barh(names, [found[name] for name in names], color=COLOURS[0], height=0.6)
    bars.set(xlim=(0, 1), xlabel="part of the variance explained", title=f"{len(scored)} trials")
    plain(bars)
    for index, (panel, name) in enumerate(zip(panels, reversed(names))):
        _draw_parameter(panel, sweep.parameters[name], [trial.parameters[name] for trial, _ in scored], scored)
        panel.set_xlabel(name)
        if (1 + index) % columns == 0 or index == 0:
            panel.set_ylabel(sweep.settings.metric)
        plain(panel)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    figure.savefig(path, dpi=110)
    return True


def _draw_parameter(panel: Any, parameter: Parameter, chosen: Sequence[Any], scored: Sequence[Any]) -> None:
    """Trials by the value they had: a range on an axis of numbers, choices side by side in their order."""
    values = [value for _, value in scored]
    if isinstance(parameter, Choices):
        names = [_cell(list(each) if isinstance(each, tuple) else each) for each in parameter.values]
        places = [names.index(_cell(list(each) if isinstance(each, tuple) else each)) for each in chosen]
        panel.plot(places, values, "o", color=COLOURS[0], alpha=0.6)
        panel.set_xticks(range(len(names)), names)
        panel.set_xlim(-0.5, len(names) - 0.5)
        return
    panel.plot(chosen, values, "o", color=COLOURS[0], alpha=0.6)
    if parameter.log or (min(chosen) > 0 and max(chosen) / min(chosen) >= 10):
        panel.set_xscale("log")
