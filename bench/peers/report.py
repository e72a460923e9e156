"""What is told of the turns: medians, a table, a picture, and where Shoal loses."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.tasks import CONTROL, TASKS

MOST = 0.9  # of the steps: what is acted and what is trained on at the edges of a measurement is not the same
TITLES = {
    "pong": "Pong, 84 × 84 × 4, Nature CNN",
    "cartpole": "CartPole-v1, 2 × 64 tanh",
    "halfcheetah": "HalfCheetah-v5, 2 × 256 ReLU, an update of 256 rows a step",
}


def reading(task: str, method: str, found: dict[str, Any]) -> dict[str, Any]:
    """One turn of a side, the same fields for all: steps per second, how many were acted, and how often each one was
    trained on. Who leaves more than a tenth out is counted by those that were trained on as often as the task says.

    Shoal's actors report in bursts, at times that have nothing to do with updates, so that some seconds hold half an
    iteration more of what was acted than there was: it is counted by what its learner has trained on, whose count
    changes with updates alone, as that of the others does. It has each step there once, however many epochs there are.
    """
    work = TASKS[task].work(method)
    acted = float(found["env_steps_per_second"])
    if "trained_steps_per_second" in found:
        trained = float(found["trained_steps_per_second"])
        if method in CONTROL:  # every row of every update
            trained /= work.epochs
        return {"env_steps_per_second": trained, "acted_per_second": acted, "passes": float(work.epochs)}
    trained = float(found["trained_rows_per_second"]) / work.epochs
    share = trained / acted if acted else 0.0
    return {
        "env_steps_per_second": round(acted if share > MOST else trained, 1),
        "acted_per_second": acted,
        "passes": round(share * work.epochs, 2),
    }


def row(side: dict[str, Any], turns: list[dict[str, Any]]) -> dict[str, Any]:
    """A side's entry in the results: `side` says who it is, with which setting."""
    rates = [turn["env_steps_per_second"] for turn in turns]
    return {
        **side,
        "median": median(rates) if rates else None,
        "rounds": rates,
        "passes": median(turn["passes"] for turn in turns) if turns else None,
        "acted": [turn["acted_per_second"] for turn in turns],
    }


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def ratio(found: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """To Shoal's median with the same method."""
    ours = [other["median"] for other in rows if other["peer"] == "shoal" and other["method"] == found["method"]]
    if found["median"] is None or not ours or not ours[0]:
        return None
    return float(found["median"] / ours[0])


def merged(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was known, with what was taken now in place of the same method on the same task."""
    return {task: known.get(task, {}) | new.get(task, {}) for task in TASKS if task in known or task in new}


def by_task(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {task: [row for part in parts.values() for row in part["rows"]] for task, parts in results.items()}


def table(results: dict[str, Any]) -> str:
    """The markdown for docs/benchmarks.md, a table for each task."""
    parts = []
    for task, rows in by_task(results).items():
        lines = [
            f"| {TITLES[task]} | steps/s, median | all rounds | of Shoal's | passes | its share of the cores |",
            "|---|---|---|---|---|---|",
        ]
        for found in rows:
            if found["median"] is None:
                lines.append(f"| {found['label']} | no result | | | | {found['setting'] or '–'} |")
                continue
            part = ratio(found, rows)
            told = "" if found["peer"] == "shoal" else "–" if part is None else f"{part:.2f}x"
            every = ", ".join(f"{rate:,.0f}" for rate in found["rounds"])
            lines.append(
                f"| {found['label']} | {found['median']:,.0f} | {every} | {told} | {found['passes']:.1f} "
                f"| {found['setting']} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def losses(results: dict[str, Any]) -> list[str]:
    """Where a peer is faster than Shoal with the same method."""
    told = []
    for task, rows in by_task(results).items():
        for found in rows:
            part = ratio(found, rows)
            if found["peer"] != "shoal" and part is not None and part > 1.0:
                told.append(f"{found['label']} is faster on {TITLES[task]}: {part:.2f} times Shoal's rate.")
    return told


def heading(results: dict[str, Any]) -> str:
    """Date, machine and versions of every part in a line of its own."""
    return "\n\n".join(
        f"{TITLES[task]}, {method}: {taken(part)}" for task, parts in results.items() for method, part in parts.items()
    )


def taken(part: dict[str, Any]) -> str:
    here = part["machine"]
    packages = "; ".join(
        f"{peer}: {', '.join(f'{name} {number}' for name, number in found.items())}"
        for peer, found in part["versions"].items()
    )
    return (
        f"taken on {part['date']} on {here['cores']} cores ({here['processor']}), {here['system']}, Python "
        f"{here['python']}; medians of {part['rounds']} rounds of {part['seconds']:g} s in turns. {packages}."
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """A panel for each task, a bar for each side, the fastest of its method above the others."""
    from matplotlib.figure import Figure

    tasks = by_task(results)
    heights = [max(2, len(rows)) for rows in tasks.values()]
    figure = Figure(figsize=(9, 1.2 * len(tasks) + 0.33 * sum(heights)), layout="constrained")
    for axes, (task, rows) in zip(
        figure.subplots(len(tasks), 1, squeeze=False, height_ratios=heights)[:, 0], tasks.items()
    ):
        order = ordered(rows)
        places = range(len(order))
        values = [found["median"] for found in order]
        axes.barh(places, values, color=["#D55E00" if found["peer"] == "shoal" else "#0072B2" for found in order])
        for place, found in zip(places, order):
            low, high = min(found["rounds"]), max(found["rounds"])
            axes.plot([low, high], [place, place], color="#444444", linewidth=1.2)
            axes.annotate(
                f"{found['median']:,.0f}",
                (max(high, found["median"]), place),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        axes.set_yticks(places, [found["label"] for found in order], fontsize="small")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max((max(found["rounds"]) for found in order), default=1.0) or 1.0)
        axes.set(title=TITLES[task], xlabel="steps per second while learning; line: slowest to fastest round")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By method in the order of the table, the fastest first; those without a result are left out."""
    methods = list(dict.fromkeys(found["method"] for found in rows))
    there = [found for found in rows if found["median"] is not None]
    return sorted(there, key=lambda found: (methods.index(found["method"]), -found["median"]))
