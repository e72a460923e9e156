"""What the pictures share: colours, numbers on axes, and files in every format that matplotlib has."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.analysis.grouping import Group
from shoal.errors import UserError
from shoal.runs.tables import is_number

# Okabe and Ito's, which colour-blind people can tell apart, without the yellow that no white page shows
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
LINES = ("-", "--", ":", "-.")  # when the colours have all been used
GREY = "#777777"


def new_figure(width: float, height: float, output: Path) -> Any:
    """A figure for a file whose ending says the format; refuses what is no format, and where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("Plots need matplotlib: install it with `pip install 'shoal[plot]'`.")
    from matplotlib.figure import Figure  # no pyplot: it looks for a display and keeps state

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    known: Mapping[str, str] = figure.canvas.get_supported_filetypes()
    ending = output.suffix.removeprefix(".").lower()
    if ending not in known:
        given = f"there is no picture format {ending!r}" if ending else "its ending says the format, and there is none"
        raise UserError(f"--output {output}: {given}: give one of {', '.join(sorted(known))}.")
    return figure


def save(figure: Any, output: Path) -> None:
    """Complete or absent: where it cannot be written the picture that was there before stays."""
    memory = io.BytesIO()
    figure.savefig(memory, format=output.suffix.removeprefix(".").lower(), dpi=120)
    made = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        made.write_bytes(memory.getvalue())
        os.replace(made, output)
    except OSError as error:
        with contextlib.suppress(OSError):  # a read-only disk does not even say that it is not there
            made.unlink()
        raise UserError(f"{output} cannot be written ({error.strerror}): give another --output.") from None


def styles(everything: Iterable[Group[Any]]) -> dict[str, dict[str, Any]]:
    """A colour and a kind of line for each label, the same in all panels. Where groups are told apart by one number,
    colours go from dark to light with it."""
    first: dict[str, Group[Any]] = {}
    for group in everything:
        first.setdefault(group.label, group)
    groups = list(first.values())
    names = {name for group in groups for name in group.values}
    numbers = [group.values.get(name) for group in groups for name in names] if len(names) == 1 else []
    alike = len({group.label.partition(":")[0] for group in groups}) == 1
    if len(groups) > 2 and alike and numbers and all(map(is_number, numbers)):
        import matplotlib

        scale = matplotlib.colormaps["viridis"]
        return {
            label: {"color": scale(0.9 * index / (len(groups) - 1)), "linestyle": "-"}
            for index, label in enumerate(first)
        }
    return {
        label: {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}
        for index, label in enumerate(first)
    }


def title_of(task: str, labels: Sequence[str]) -> tuple[str, list[str]]:
    """What stands above a panel, and labels without what the title says: an algorithm that all of them have."""
    algorithms = {label.partition(":")[0] for label in labels}
    if len(algorithms) > 1:
        return task, list(labels)
    (algorithm,) = algorithms
    return f"{algorithm} on {task}", [label.removeprefix(f"{algorithm}: ") for label in labels]


def plain(axes: Any) -> None:
    """No frame, a light grid behind what is drawn."""
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def short_number(value: float) -> str:
    """0.5, 20, 1.5k, 3M: thousands and millions are shortened, nothing else."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
