"""Curves: one run's evaluations, or the mean and spread over the seeds of several."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.experiment import directory, registry

Array = npt.NDArray[np.float64]
GRID = 200  # points of the common grid
AXES = (("env_steps", "environment steps"), ("seconds", "seconds of training"))


def write_curve(path: Path) -> None:
    """Draw a run's evaluations into its directory; nothing where matplotlib or evaluations are missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    try:
        draw([path], path / directory.CURVE)
    except (UserError, OSError):
        pass  # a picture less is no reason to call a run failed


def draw(paths: Sequence[Path], output: Path) -> list[str]:
    """Draw runs, those of one algorithm and environment as mean and spread over their seeds; returns their labels."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("Plots need matplotlib: install it with `pip install 'shoal[plot]'`.")
    groups: dict[str, list[list[dict[str, Any]]]] = {}
    target = None
    for path in paths:
        record = directory.read_config(path)
        rows = directory.read_rows(path, "evaluation")
        if rows:
            label = f"{registry.short_name(record['algorithm'])} on {record['env']}"
            groups.setdefault(label, []).append(rows)
            target = record.get("options", {}).get("stop_return") or target
    if not groups:
        raise UserError("There is nothing to plot: no run among these has evaluations.")

    from matplotlib.figure import Figure  # no pyplot: it looks for a display and keeps state
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (column, name) in zip(figure.subplots(1, 2, sharey=True), AXES):
        for label, runs in groups.items():
            x, mean, spread = over_seeds(runs, column)
            seeds = f", mean and spread of {len(runs)} runs" if len(runs) > 1 else ""
            (drawn,) = axes.plot(x, mean, label=label + seeds, marker="." if len(x) < 40 else None)
            axes.fill_between(x, mean - spread, mean + spread, color=drawn.get_color(), alpha=0.2, linewidth=0)
            for rows in runs if len(runs) > 1 else []:
                own, value = _column(rows, column), _column(rows, "eval_return")
                axes.plot(own, value, color=drawn.get_color(), alpha=0.25, linewidth=0.8)
                axes.plot(own[-1:], value[-1:], ".", color=drawn.get_color(), alpha=0.6)
        if target is not None:
            axes.axhline(target, color="grey", linestyle=":", linewidth=1)
        axes.set_xlabel(name)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("evaluated return")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False)  # above, where it hides no curve
    figure.savefig(output, dpi=120)
    return list(groups)


def over_seeds(runs: Sequence[Sequence[dict[str, Any]]], column: str) -> tuple[Array, Array, Array]:
    """x, mean and spread. One run: its evaluations and the spread over their episodes. Several: interpolated on a
    common grid, and the standard deviation over runs. A run that ended, at its goal say, keeps its last value."""
    if len(runs) == 1:
        rows = runs[0]
        return _column(rows, column), _column(rows, "eval_return"), _column(rows, "spread")
    begin = max(row[0][column] for row in runs)
    end = max(row[-1][column] for row in runs)
    grid = np.linspace(begin, max(begin, end), GRID)
    curves = np.stack([np.interp(grid, _column(rows, column), _column(rows, "eval_return")) for rows in runs])
    return grid, curves.mean(axis=0), curves.std(axis=0)


def _column(rows: Sequence[dict[str, Any]], name: str) -> Array:
    return np.array([row[name] for row in rows], np.float64)
