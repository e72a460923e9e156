"""Curves: a panel for each task, a curve for each setting, with the spread over its seeds or a run's episodes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.experiment import directory, registry

Array = npt.NDArray[np.float64]
Rows = Sequence[Mapping[str, float]]
GRID = 200  # points of the common grid
AXES = (("env_steps", "environment steps"), ("seconds", "seconds of training"))
COLUMNS = ("eval_return", "spread", *(column for column, _ in AXES))
SHOWN = 4  # settings in a label
NAMED_APART = ("env", "preset")  # fields that the panel names, or that only say where others come from


@dataclass(frozen=True)
class Run:
    """What is drawn of one run."""

    task: str
    algorithm: str
    settings: Mapping[str, Any]
    target: float | None
    virtual: bool  # so are its seconds, which have nothing to do with those of a clock
    rows: Rows


@dataclass
class Curve:
    """Runs that differ in their seeds alone."""

    label: str
    runs: list[Run]


def write_curve(path: Path) -> None:
    """Draw a run's evaluations into its directory; nothing where matplotlib or evaluations are missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    try:
        draw([path], path / directory.CURVE)
    except (UserError, OSError):
        pass  # a picture less is no reason to call a run failed


def draw(paths: Sequence[Path], output: Path, warn: Callable[[str], None] = lambda text: None) -> list[str]:
    """Draw runs, and those in folders of runs; returns what was drawn, a line for each curve. What is no run among
    several is left out, and `warn` is told."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("Plots need matplotlib: install it with `pip install 'shoal[plot]'`.")
    from matplotlib.figure import Figure  # no pyplot: it looks for a display and keeps state

    panels = panels_of(read_runs(paths, warn))
    lines = sum(len(curves) for curves in panels.values())  # of legends
    figure = Figure(figsize=(10, 4 * len(panels) + 0.25 * lines), layout="constrained")
    _check_format(output, figure.canvas.get_supported_filetypes())
    parts: Any = figure.subfigures(len(panels), 1, squeeze=False)
    for (part,), (task, curves) in zip(parts, panels.items()):
        _draw_panel(part, task, curves)
    try:
        figure.savefig(output, dpi=120)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror}): give another --output.") from None
    return [f"{curve.label} on {task}" for task, curves in panels.items() for curve in curves]


def _check_format(output: Path, known: Mapping[str, str]) -> None:
    ending = output.suffix.removeprefix(".").lower()
    if ending not in known:
        given = f"there is no picture format {ending!r}" if ending else "its ending says the format, and there is none"
        raise UserError(f"--output {output}: {given}: give one of {', '.join(sorted(known))}.")


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def read_runs(paths: Sequence[Path], warn: Callable[[str], None]) -> list[Run]:
    found, strange = [], []
    given: dict[Path, Path] = {}
    for path in paths:
        given.setdefault(path.resolve(), path)  # the same one twice is drawn once
    for path in given.values():
        inside = sorted(file.parent for file in path.glob(f"*/{directory.CONFIG}")) if path.is_dir() else []
        for one in [path] if not inside or (path / directory.CONFIG).exists() else inside:
            try:
                found.append(_read_run(one))
            except UserError as error:
                strange.append(error)
    if not found and strange:
        raise strange[0]
    for reason in strange:
        warn(f"left out: {reason}")
    drawn = [run for run in found if run.rows]
    if not drawn:
        raise UserError("There is nothing to plot: no run among these has evaluations.")
    return drawn


def _read_run(path: Path) -> Run:
    record = directory.read_config(path)
    rows = directory.read_rows(path, "evaluation")
    usable = [row for row in rows if all(isinstance(row.get(column), int | float) for column in COLUMNS)]
    if rows and not usable:
        raise UserError(f"{path / directory.METRICS} is damaged: no evaluation in it has {', '.join(COLUMNS)}.")
    options = record.get("options")
    options = options if isinstance(options, dict) else {}
    target, runtime = options.get("stop_return"), options.get("runtime", "local")
    settings = {name: value for name, value in record["config"].items() if name not in NAMED_APART}
    return Run(
        task=record["env"],
        algorithm=registry.short_name(record["algorithm"]),
        settings={**settings, "runtime": runtime},
        virtual=runtime == "inline",
        target=target if isinstance(target, int | float) else None,
        rows=usable,
    )


def panels_of(runs: Sequence[Run]) -> dict[str, list[Curve]]:
    """Curves by task. Runs of one algorithm and the same settings are one curve; where settings differ, labels say in
    what."""
    panels: dict[str, list[Curve]] = {}
    for task, algorithm in dict.fromkeys((run.task, run.algorithm) for run in runs):
        alike = [run for run in runs if (run.task, run.algorithm) == (task, algorithm)]
        names = dict.fromkeys(name for run in alike for name in run.settings)
        differing = [name for name in names if len({_text(run.settings.get(name)) for run in alike}) > 1]
        curves: dict[tuple[str, ...], Curve] = {}
        for run in alike:
            said = tuple(f"{name} {_text(run.settings.get(name))}" for name in differing)
            more = [f"and {len(said) - SHOWN} more"] if len(said) > SHOWN else []
            label = f"{algorithm}: {', '.join([*said[:SHOWN], *more])}" if said else algorithm
            curves.setdefault(said, Curve(label, [])).runs.append(run)
        panels.setdefault(task, []).extend(curves.values())
    return panels


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _draw_panel(figure: Any, task: str, curves: Sequence[Curve]) -> None:
    for axes, (column, name) in zip(figure.subplots(1, 2, sharey=True), AXES):
        drawn_here, name = on_axis(curves, column, name)
        for curve in drawn_here:
            runs = [run.rows for run in curve.runs]
            x, mean, low, high = over_seeds(runs, column)
            seeds = f" (mean and spread of {len(runs)} runs)" if len(runs) > 1 else ""
            (drawn,) = axes.plot(x, mean, label=curve.label + seeds, marker="." if len(x) < 40 else None)
            axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
            for rows in runs if len(runs) > 1 else []:
                own, value = _column(rows, column), _column(rows, "eval_return")
                axes.plot(own, value, color=drawn.get_color(), alpha=0.25, linewidth=0.8)
                axes.plot(own[-1:], value[-1:], ".", color=drawn.get_color(), alpha=0.6)
        for target in {run.target for curve in curves for run in curve.runs if run.target is not None}:
            axes.axhline(target, color="grey", linestyle=":", linewidth=1)
        axes.set_xlabel(name)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("evaluated return")
    figure.suptitle(task, fontsize="medium", x=0.01, ha="left")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower left", frameon=False)


def on_axis(curves: Sequence[Curve], column: str, name: str) -> tuple[Sequence[Curve], str]:
    """The curves that have a place on an axis, and its name: virtual seconds do not stand beside real ones."""
    real = [curve for curve in curves if not any(run.virtual for run in curve.runs)]
    if column != "seconds" or len(real) == len(curves):
        return curves, name
    return (real, name) if real else (curves, f"virtual {name}")


def short_number(value: float) -> str:
    """0.5, 20, 1.5k, 3M: thousands and millions are shortened, nothing else."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def over_seeds(runs: Sequence[Rows], column: str) -> tuple[Array, Array, Array, Array]:
    """x, mean, and the band of one standard deviation around it, as far as there are values in it. One run: over the
    episodes of each evaluation. Several: over runs, interpolated on a common grid, on which a run that ended, at its
    goal say, keeps its last value."""
    if len(runs) == 1:
        rows = runs[0]
        mean, spread = _column(rows, "eval_return"), _column(rows, "spread")
        lowest = _column([{"lowest": -np.inf, **row} for row in rows], "lowest")
        highest = _column([{"highest": np.inf, **row} for row in rows], "highest")
        return _column(rows, column), mean, np.maximum(mean - spread, lowest), np.minimum(mean + spread, highest)
    begin = max(row[0][column] for row in runs)
    end = max(row[-1][column] for row in runs)
    grid = np.linspace(begin, max(begin, end), GRID)
    curves = np.stack([np.interp(grid, _column(rows, column), _column(rows, "eval_return")) for rows in runs])
    mean, spread = curves.mean(axis=0), curves.std(axis=0)
    return grid, mean, np.maximum(mean - spread, curves.min(axis=0)), np.minimum(mean + spread, curves.max(axis=0))


def _column(rows: Rows, name: str) -> Array:
    return np.array([row[name] for row in rows], np.float64)
