"""Curves: a panel for each task, a curve for each setting, with an interval over its seeds or the spread of a run's
episodes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.analysis.grouping import Group, chosen, grouped, put_together, words
from shoal.analysis.pictures import GREY, new_figure, plain, save, short_number, styles, title_of
from shoal.analysis.statistics import interval_of_curves, middle_of_curves
from shoal.errors import UserError
from shoal.runs import directory, registry
from shoal.runs.run_lists import run_folders, state_of
from shoal.runs.tables import is_number

Array = npt.NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]
GRID = 200  # points of the common grid
AXES = (("env_steps", "environment steps"), ("seconds", "seconds of training"))
COLUMNS = ("eval_return", "spread", *(column for column, _ in AXES))
WIDTH, HEIGHT, LINE = 10.0, 3.9, 0.24  # inches: of the picture, of a panel, of a line of its legend
SEVERAL = "interquartile mean over runs and its 95 % bootstrap interval"
FEW = 4  # curves in a panel, so that single runs can be told apart below them
FAR = 20.0  # times as long as the shortest curve is the longest: side by side only where an axis is logarithmic
ONE = "one run: mean and standard deviation of its episodes"


@dataclass(frozen=True)
class Run:
    """What is drawn of one run."""

    path: Path
    env: str
    algorithm: str
    seed: int
    config: Mapping[str, Any]
    options: Mapping[str, Any]
    rows: Rows

    @property
    def target(self) -> float | None:
        value = self.options.get("stop_return")
        return float(value) if is_number(value) else None

    @property
    def virtual(self) -> bool:
        """So are its seconds, which have nothing to do with those of a clock."""
        return self.options.get("runtime") == "inline"

    @property
    def state(self) -> str:
        return state_of(self.path).state

    @property
    def stopped_by(self) -> str | None:
        return state_of(self.path).stopped_by

    @property
    def resumable(self) -> bool:
        return state_of(self.path).resumable


def write_curve(path: Path) -> None:
    """Draw a run's evaluations into its directory; nothing where matplotlib or evaluations are missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    try:
        draw([path], path / directory.CURVE)
    except (UserError, OSError):
        pass  # a picture less is no reason to call a run failed


def draw(
    paths: Sequence[Path],
    output: Path,
    warn: Callable[[str], None] = lambda text: None,
    by: str | None = None,
    where: str | None = None,
) -> list[str]:
    """Draw runs, and those in folders of runs; returns what was drawn, a line for each curve. What is no run among
    several is left out, and `warn` is told."""
    runs = chosen(read_runs(paths, warn), where)
    if not runs:
        raise UserError(f"There is nothing to plot: no run among these has --where {where}.")
    panels = grouped(runs, words(by))
    for name in put_together(group for groups in panels.values() for group in groups):
        warn(f"runs of one curve differ in {name}: --by {','.join([*words(by), name])} tells them apart")
    lines = sum(len(groups) + 1 for groups in panels.values())  # of legends
    figure = new_figure(WIDTH, HEIGHT * len(panels) + LINE * lines, output)
    shares = [HEIGHT + LINE * (len(groups) + 1) for groups in panels.values()]
    parts: Any = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=shares)
    chosen_styles = styles(group for groups in panels.values() for group in groups)
    for (part,), (task, groups) in zip(parts, panels.items()):
        _draw_panel(part, task, groups, chosen_styles)
    save(figure, output)
    return [f"{group.label} on {task}: {_runs(group)}" for task, groups in panels.items() for group in groups]


def _runs(group: Group[Run]) -> str:
    return f"{len(group.runs)} runs" if len(group.runs) > 1 else "1 run"


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def read_runs(paths: Sequence[Path], warn: Callable[[str], None]) -> list[Run]:
    found, strange = [], []
    given: dict[Path, Path] = {}
    for path in paths:
        given.setdefault(path.resolve(), path)  # the same one twice is drawn once
    for path in given.values():
        for one in run_folders(path) or [path]:
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
    for run in drawn:
        if unreadable := directory.unreadable_rows(run.path):
            warn(f"{run.path / directory.METRICS} is damaged: rows left out that cannot be read: {unreadable}.")
    return drawn


def _read_run(path: Path) -> Run:
    record = directory.read_config(path)
    options = record.get("options")
    return Run(
        path=path,
        env=record["env"],
        algorithm=registry.short_name(record["algorithm"]),
        seed=int(record.get("seed") or 0),
        config=record["config"],
        options={"runtime": "local", **(options if isinstance(options, dict) else {})},
        rows=read_evaluations(path),
    )


def read_evaluations(path: Path) -> Rows:
    """Rows that have every number that is drawn."""
    rows = directory.read_rows(path, "evaluation")
    usable = [row for row in rows if all(is_number(row.get(column)) for column in COLUMNS)]
    if rows and not usable:
        raise UserError(f"{path / directory.METRICS} is damaged: no evaluation in it has {', '.join(COLUMNS)}.")
    return usable


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _draw_panel(
    figure: Any, task: str, groups: Sequence[Group[Run]], chosen_styles: Mapping[str, Mapping[str, Any]]
) -> None:
    title, labels = title_of(task, [group.label for group in groups])
    for axes, (column, name) in zip(figure.subplots(1, 2, sharey=True), axes_of(groups)):
        drawn_here, name = on_axis(groups, column, name)
        for group, label in zip(groups, labels):
            if group in drawn_here:
                style = chosen_styles[group.label]
                _draw_curve(axes, group, f"{label} ({_runs(group)})", style, column, few=len(groups) <= FEW)
        _draw_targets(axes, groups, named=column == AXES[-1][0])
        if (begin := log_from(drawn_here, column)) is None:
            axes.set_xlim(left=0)
        else:
            axes.set_xscale("log")
            axes.set_xlim(left=begin)
            axes.minorticks_off()
            name += ", logarithmic"
        axes.set_xlabel(name)
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        plain(axes)
    figure.axes[0].set_ylabel("evaluated return")
    figure.suptitle(title, fontsize="large", x=0.01, ha="left")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    single = ", thin: the runs" if len(groups) <= FEW else ""
    kinds = [text for text, wanted in ((SEVERAL + single, True), (ONE, False)) if _any(groups, several=wanted)]
    columns = 2 if len(labels) > 5 and max(map(len, labels)) < 50 else 1
    figure.legend(
        handles,
        labels,
        loc="outside lower left",
        frameon=False,
        ncols=columns,
        title="; ".join(kinds),
        title_fontsize="small",
        alignment="left",
    )


def _any(groups: Sequence[Group[Run]], several: bool) -> bool:
    return any((len(group.runs) > 1) is several for group in groups)


def _draw_curve(axes: Any, group: Group[Run], label: str, style: Mapping[str, Any], column: str, few: bool) -> None:
    runs = [run.rows for run in group.runs]
    x, middle, low, high = over_seeds(runs, column)
    axes.plot(x, middle, label=label, marker="." if len(x) < 40 else None, zorder=3, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.18 if few else 0.09, linewidth=0)
    for rows in runs if few and len(runs) > 1 else []:
        own, value = _column(rows, column), _column(rows, "eval_return")
        axes.plot(own, value, color=style["color"], alpha=0.22, linewidth=0.8)
        axes.plot(own[-1:], value[-1:], ".", color=style["color"], alpha=0.6)


def _draw_targets(axes: Any, groups: Sequence[Group[Run]], named: bool) -> None:
    for target in sorted({run.target for group in groups for run in group.runs if run.target is not None}):
        axes.axhline(target, color=GREY, linestyle=":", linewidth=1)
        if named:  # beside the axes: inside, curves that reach it would run through the words
            place = {"xycoords": ("axes fraction", "data"), "annotation_clip": False, "ha": "left", "va": "center"}
            axes.annotate(f" target\n {target:,.6g}", (1.0, target), fontsize="x-small", color=GREY, **place)


def axes_of(groups: Sequence[Group[Run]]) -> Sequence[tuple[str, str]]:
    """What returns are drawn over; where some of the runs learned from data alone, updates in place of steps."""
    stepless = any(run.rows[-1]["env_steps"] == 0 for group in groups for run in group.runs)
    told = all(is_number(row.get("version")) for group in groups for run in group.runs for row in run.rows)
    return (("version", "updates"), AXES[1]) if stepless and told else AXES


def on_axis(groups: Sequence[Group[Run]], column: str, name: str) -> tuple[Sequence[Group[Run]], str]:
    """The curves that have a place on an axis, and its name: virtual seconds do not stand beside real ones."""
    real = [group for group in groups if not any(run.virtual for run in group.runs)]
    if column != "seconds" or len(real) == len(groups):
        return groups, name
    return (real, name) if real else (groups, f"virtual {name}")


def log_from(groups: Sequence[Group[Run]], column: str) -> float | None:
    """Where a logarithmic axis begins, if the curves are so unlike in length that the short ones would be a smear on
    another one."""
    ends = [max(float(run.rows[-1][column]) for run in group.runs) for group in groups]
    begins = [float(row[column]) for group in groups for run in group.runs for row in run.rows if row[column] > 0]
    return min(begins) if begins and max(ends) > FAR * min(ends) else None


def over_seeds(runs: Sequence[Rows], column: str) -> tuple[Array, Array, Array, Array]:
    """x, the middle, and the band around it. One run: mean and standard deviation over the episodes of each evaluation,
    as far as there are values. Several: the interquartile mean over runs and its 95 % interval, on a common grid, on
    which a run that ended, at its goal say, keeps its last value."""
    if len(runs) == 1:
        rows = runs[0]
        mean, spread = _column(rows, "eval_return"), _column(rows, "spread")
        lowest, highest = _column(rows, "lowest", -np.inf), _column(rows, "highest", np.inf)
        return _column(rows, column), mean, np.maximum(mean - spread, lowest), np.minimum(mean + spread, highest)
    begin = max(row[0][column] for row in runs)
    end = max(row[-1][column] for row in runs)
    grid = np.linspace(begin, max(begin, end), GRID)
    curves = np.stack([np.interp(grid, _column(rows, column), _column(rows, "eval_return")) for rows in runs])
    return grid, middle_of_curves(curves), *interval_of_curves(curves)


def _column(rows: Rows, name: str, otherwise: float = np.nan) -> Array:
    """A number of every row; where a row has none, as older and damaged ones may, another one in its place."""
    values = [row.get(name) for row in rows]
    return np.array([value if is_number(value) else otherwise for value in values], np.float64)
