"""Settings beside each other: last returns over seeds and tasks, steps and seconds to a target; table and picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.analysis.grouping import Group, grouped, order
from shoal.analysis.pictures import GREY, new_figure, plain, save, short_number, styles, title_of
from shoal.analysis.plots import read_evaluations
from shoal.analysis.statistics import interquartile_mean, interval
from shoal.runs.run_lists import RunState
from shoal.runs.tables import folded, is_number

ALL_TASKS = "all tasks, 0 to 1"


@dataclass(frozen=True)
class Middle:
    """The interquartile mean of values, and its 95 % interval."""

    iqm: float
    low: float
    high: float
    values: list[float]

    @staticmethod
    def of(*strata: Sequence[float]) -> Middle | None:
        values = [value for stratum in strata for value in stratum]
        kept = [stratum for stratum in strata if len(stratum)]
        return Middle(interquartile_mean(values), *interval(*kept), values) if values else None


@dataclass(frozen=True)
class Compared:
    """One setting on one task, or on all of them."""

    env: str
    setting: str
    values: dict[str, Any]
    runs: int
    returns: Middle
    aimed: int  # runs that had a target
    reached: int
    seconds: Middle | None  # to the target, of those that reached it
    steps: Middle | None
    missed: list[float]  # seconds of training of runs that did not reach it
    virtual: bool  # so are seconds
    spread: float | None = None  # of the episodes of the last evaluation, where there is but one run

    def as_dict(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        returns = found.pop("returns")
        found |= {"iqm": returns["iqm"], "low": returns["low"], "high": returns["high"], "returns": returns["values"]}
        for name in ("seconds", "steps"):
            found[f"{name}_to_target"] = found.pop(name)
        return found


def compare(runs: Sequence[RunState], by: Sequence[str], target: float | None) -> dict[str, list[Compared]]:
    """Of every task its settings, the best first; and of settings that were run on every task all tasks together, with
    each task's returns between 0, the lowest of any run, and 1, the highest."""
    tasks = {
        env: sorted((_compared(group, target) for group in groups), key=lambda one: -one.returns.iqm)
        for env, groups in grouped(runs, by).items()
    }
    together = _over_tasks(tasks)
    return {**tasks, ALL_TASKS: together} if together else tasks


def _compared(group: Group[RunState], target: float | None) -> Compared:
    reached = [_to_target(run, target) for run in group.runs]
    times = [found for found in reached if found is not None]
    aims = [target is not None or is_number(run.options.get("stop_return")) for run in group.runs]
    returns = Middle.of([run.eval_return for run in group.runs if run.eval_return is not None])
    assert returns is not None
    return Compared(
        env=group.env,
        setting=group.label,
        values=group.values,
        runs=len(group.runs),
        returns=returns,
        aimed=sum(aims),
        reached=len(times),
        seconds=Middle.of([seconds for seconds, _ in times]),
        steps=Middle.of([steps for _, steps in times if steps is not None]),
        missed=[run.seconds for run, found, aimed in zip(group.runs, reached, aims) if aimed and found is None],
        virtual=any(run.options.get("runtime") == "inline" for run in group.runs),
        spread=_spread(group.runs[0]) if len(group.runs) == 1 else None,
    )


def _spread(run: RunState) -> float | None:
    rows = read_evaluations(run.path)
    return float(rows[-1]["spread"]) if rows else None


def _to_target(run: RunState, target: float | None) -> tuple[float, float | None] | None:
    """Seconds of training and environment steps until the target: the run's own, as its evaluator has confirmed it, or
    the first evaluation that reached the one that is given; None where it never did."""
    rows = read_evaluations(run.path)
    if target is not None:
        found = next((row for row in rows if row["eval_return"] >= target), None)
        return None if found is None else (float(found["seconds"]), float(found["env_steps"]))
    seconds = run.summary.get("seconds_to_target")
    if not isinstance(seconds, int | float):
        return None
    return float(seconds), next((float(row["env_steps"]) for row in rows if row.get("reached") is True), None)


def _over_tasks(tasks: Mapping[str, Sequence[Compared]]) -> list[Compared]:
    if len(tasks) < 2:
        return []
    ends = {}
    for env, settings in tasks.items():
        values = [value for one in settings for value in one.returns.values]
        ends[env] = (min(values), max(values) - min(values) or 1.0)
    found = []
    for label in dict.fromkeys(one.setting for settings in tasks.values() for one in settings):
        everywhere = [one for settings in tasks.values() for one in settings if one.setting == label]
        if len(everywhere) < len(tasks):
            continue  # a mean over other tasks than those of its rivals says nothing
        strata = [[(value - ends[one.env][0]) / ends[one.env][1] for value in one.returns.values] for one in everywhere]
        returns = Middle.of(*strata)
        assert returns is not None
        counts = {name: sum(getattr(one, name) for one in everywhere) for name in ("runs", "aimed", "reached")}
        found.append(
            Compared(
                env=ALL_TASKS,
                setting=label,
                values=everywhere[0].values,
                returns=returns,
                seconds=None,
                steps=None,
                missed=[],
                virtual=False,
                **counts,
            )
        )
    return sorted(found, key=lambda one: -one.returns.iqm)


# ---- told ------------------------------------------------------------------------------------------------------------

HEADING = ["setting", "runs", "return (IQM)", "95 % interval", "reached", "after steps", "seconds"]


def lines(tasks: Mapping[str, Sequence[Compared]], width: int | None = None) -> list[str]:
    """A table, with the name of each task above its settings; in a terminal of `width` columns it is folded to fit."""
    rows, titles = [HEADING], {}
    for task, settings in tasks.items():
        titles[len(rows)] = task
        rows += table_rows(settings)
    used = [index for index in range(len(HEADING)) if index < 4 or any(row[index] != "–" for row in rows[1:])]
    told = []
    for index, line in enumerate(folded([[row[index] for index in used] for row in rows], width)):
        told += ["", titles[index]] if index in titles else []
        told.append(line)
    return told


def table_rows(settings: Sequence[Compared]) -> list[list[str]]:
    rows = []
    for one in settings:
        digits = 2 if abs(one.returns.high) < 10 else 1
        interval = f"{one.returns.low:,.{digits}f} … {one.returns.high:,.{digits}f}" if one.runs > 1 else "–"
        if one.spread is not None:
            interval = f"± {one.spread:,.{digits}f}, its episodes"
        steps = "–" if one.steps is None else short_number(float(f"{one.steps.iqm:.3g}"))
        seconds = "–" if one.seconds is None else f"{one.seconds.iqm:,.1f}" + (" virtual" if one.virtual else "")
        reached = f"{one.reached} of {one.aimed}" if one.aimed else "–"
        middle = f"{one.returns.iqm:,.{digits}f}"
        rows.append([one.setting, str(one.runs), middle, interval, reached, steps, seconds])
    return rows


def draw(tasks: Mapping[str, Sequence[Compared]], output: Path) -> None:
    """A row of panels for each task: last returns, and, where somebody reached a target, seconds to it."""
    timed = any(one.seconds is not None for settings in tasks.values() for one in on_one_clock(settings))
    shares = [0.9 + 0.36 * len(settings) for settings in tasks.values()]
    figure = new_figure(10.0 if timed else 6.5, sum(shares) + 0.3, output)
    panels = figure.subplots(len(tasks), 2 if timed else 1, squeeze=False, height_ratios=shares)
    everything: list[Group[RunState]] = [
        Group(one.env, one.setting, one.values, []) for settings in tasks.values() for one in settings
    ]
    everything.sort(key=lambda group: order(group.values))
    colours = {label: style["color"] for label, style in styles(everything).items()}
    for row, (task, settings) in zip(panels, tasks.items()):
        title, labels = title_of(task, [one.setting for one in settings])
        _draw_middles(row[0], settings, [one.returns for one in settings], labels, colours)
        for place, one in enumerate(settings):
            if one.spread is not None:
                ends = {"xerr": one.spread, "fmt": "o", "color": colours[one.setting], "capsize": 4, "linewidth": 1.5}
                row[0].errorbar(one.returns.iqm, place, **ends)
        row[0].set_title(title, loc="left", fontsize="medium")
        row[0].set_xlabel("last evaluated return" if task != ALL_TASKS else "return between lowest and highest")
        if timed:
            _draw_times(row[1], settings, colours)
    several = "interquartile mean over runs (line), its 95 % bootstrap interval (bar), runs (dots)"
    alone = "one run (dot): mean and standard deviation of its last evaluation's episodes"
    among = [one for settings in tasks.values() for one in settings]
    kinds = {several: any(one.runs > 1 for one in among), alone: any(one.spread is not None for one in among)}
    figure.supxlabel(
        "; ".join(kind for kind, there in kinds.items() if there),
        fontsize="x-small",
        color=GREY,
        x=0.01,
        ha="left",
    )
    save(figure, output)


def on_one_clock(settings: Sequence[Compared]) -> list[Compared]:
    """Virtual seconds do not stand beside real ones."""
    real = [one for one in settings if not one.virtual]
    return real or list(settings)


def _draw_times(axes: Any, settings: Sequence[Compared], colours: Mapping[str, Any]) -> None:
    kept = on_one_clock(settings)
    if not any(one.seconds is not None for one in kept):
        axes.set_axis_off()
        return
    shown = [one if one in kept else None for one in settings]
    labels = [f"{one.reached} of {one.aimed}" if one.aimed else "no target" for one in settings]
    _draw_middles(axes, settings, [None if one is None else one.seconds for one in shown], labels, colours)
    for place, one in enumerate(shown):
        if one is not None and one.missed:
            axes.plot(one.missed, [place] * len(one.missed), ">", color=colours[one.setting], mfc="white", ms=5)
    virtual = "virtual " if all(one.virtual for one in settings) else ""
    missed = any(one is not None and one.missed for one in shown)
    axes.set_xlabel(f"{virtual}seconds to the target" + (" (▷ ended without it)" if missed else ""))
    axes.set_xlim(left=0)


def _draw_middles(
    axes: Any,
    settings: Sequence[Compared],
    middles: Sequence[Middle | None],
    labels: Sequence[str],
    colours: Mapping[str, Any],
) -> None:
    axes.use_sticky_edges = False  # or bars would touch the frame
    for place, (one, middle) in enumerate(zip(settings, middles)):
        if middle is None:
            continue
        colour = colours[one.setting]
        if len(middle.values) == 1:  # a dot says it all
            axes.plot(middle.values, [place], "o", color=colour)
            continue
        axes.barh(place, middle.high - middle.low, left=middle.low, height=0.5, color=colour, alpha=0.35)
        axes.plot([middle.iqm] * 2, [place - 0.25, place + 0.25], color=colour, linewidth=2)
        axes.plot(middle.values, [place] * len(middle.values), ".", color=colour, alpha=0.7, markersize=5)
    axes.set_yticks(range(len(settings)), labels)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
    axes.tick_params(axis="y", length=0)
    plain(axes)
    axes.grid(visible=False, axis="y")
