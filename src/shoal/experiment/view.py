"""What the user sees while a run goes on: a live view in a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from shoal.experiment.options import Result
from shoal.experiment.progress import Progress, by_role

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
LINE_EVERY, LINE_AT_LEAST_EVERY = 2.0, 60.0  # seconds between two plain lines, at first and in a long run
FRAME_EVERY = 0.25
NO_NEWS = 5.0  # seconds after which it is said that there are none
COLOURS = {
    "environment": "green",
    "inference": "cyan",
    "learning": "magenta",
    "publishing": "blue",
    "weights": "blue",
    "evaluating": "yellow",
}


class Display(Protocol):
    def begin(self, lines: Sequence[str]) -> None: ...
    def update(self, progress: Progress) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self) -> None: ...


def choose(quiet: bool, json: bool) -> Display:
    """A live view when stdout is a terminal; with `--json` stdout is kept for the result."""
    if quiet:
        return Quiet()
    if sys.stdout.isatty() and not json:
        from rich.console import Console

        return Live(Console())
    return Lines(sys.stderr)


class Quiet:
    """Only what the user must know: notes, such as the loss of a node."""

    def begin(self, lines: Sequence[str]) -> None:
        pass

    def update(self, progress: Progress) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        pass


class Lines:
    """A line every two seconds, in a long run every minute."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0

    def begin(self, lines: Sequence[str]) -> None:
        self.note("\n".join(lines))
        self._next = time.monotonic() + LINE_EVERY / 2

    def update(self, progress: Progress) -> None:
        if time.monotonic() < self._next or not (progress.counts or progress.elapsed >= NO_NEWS):
            return
        pause = min(max(LINE_EVERY, progress.elapsed / 30), LINE_AT_LEAST_EVERY) if progress.counts else NO_NEWS
        self._next = time.monotonic() + pause
        self.note(line(progress))

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def end(self) -> None:
        pass


class Live:
    """A panel that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        # Drawn by the driver's own loop: a drawing thread would take turns with the nodes of the inline runtime.
        self._live = RichLive(console=console, auto_refresh=False, transient=False)
        self._next = 0.0
        self._title = ""
        self._last: Progress | None = None

    def begin(self, lines: Sequence[str]) -> None:
        self._title = lines[0]
        for text in lines[1:]:
            self._console.print(text, style="dim", highlight=False, markup=False)
        self._live.start()

    def update(self, progress: Progress) -> None:
        self._last = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + FRAME_EVERY
            self._live.update(panel(self._title, progress), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        if self._last is not None:
            self._live.update(panel(self._title, self._last), refresh=True)
        self._live.stop()


def amount(value: float, spread: float | None = None) -> str:
    """A return, with as many digits as are worth reading."""
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def lost(counts: Mapping[str, int]) -> str:
    """What was lost with nodes, in words."""
    return "lost " + ", ".join(many(count, kind.removesuffix("s")) for kind, count in counts.items())


def line(progress: Progress) -> str:
    """The state of a run on one line."""
    if not progress.counts:
        return f"{progress.elapsed:6.1f} s · no step yet: the nodes are starting"
    parts = [
        f"{progress.elapsed:6.1f} s",
        f"{progress.count('env_steps'):,} steps",
        f"{progress.rates.get('env_steps', 0):,.0f} steps/s",
        f"{progress.rates.get('learner_steps', 0):,.0f} updates/s",
    ]
    if "actor_return" in progress.values:
        parts.append(f"return {amount(progress.values['actor_return'])}")
    if progress.evaluation is not None:
        parts.append(f"eval {amount(progress.evaluation['eval_return'])}")
    if "staleness" in progress.values:
        parts.append(f"staleness {progress.values['staleness']:.1f}")
    if progress.count("lost_environments"):
        parts.append(f"environments replaced {progress.count('lost_environments'):,.0f}")
    if progress.restarts:
        parts.append(f"restarts {progress.restarts}")
    if progress.lost():
        parts.append(lost(progress.lost()))
    if progress.count("refused_updates"):
        parts.append(f"refused {progress.count('refused_updates')}")
    if progress.quiet >= NO_NEWS:
        parts.append(f"no news for {progress.quiet:.0f} s")
    return " · ".join(parts)


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """The course of `values` in at most `width` characters, each the mean of its share."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def panel(title: str, progress: Progress) -> RenderableType:
    """The live view's content."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(ratio=1)
    for name, value in _facts(progress):
        rows.add_row(name, Text(value))
    for name, parts in by_role(progress.times).items():
        rows.add_row(name, _bar(parts))
    rows.add_row("bottleneck", Text(progress.bottleneck()))
    minutes, seconds = divmod(int(progress.elapsed), 60)
    return Panel(rows, title=title, title_align="left", subtitle=f"{minutes}:{seconds:02d}", subtitle_align="right")


def _facts(progress: Progress) -> list[tuple[str, str]]:
    judged = "no evaluation yet"
    if progress.evaluation is not None:
        last = amount(progress.evaluation["eval_return"], progress.evaluation["spread"])
        goal = "" if progress.target is None else f" (goal {progress.target:,.12g})"
        judged = f"{sparkline(progress.evaluated.points)}  {last}{goal}"
    acting = sparkline(progress.acted.points)
    if "actor_return" in progress.values:
        acting += f"  {amount(progress.values['actor_return'])}"
    rates, values = progress.rates, progress.values
    speed = f"{rates.get('env_steps', 0):,.0f} steps/s · {rates.get('learner_steps', 0):,.0f} updates/s"
    if progress.quiet >= NO_NEWS:
        speed += f" · no news for {progress.quiet:.0f} s"
    weights = f"version {progress.count('learner_steps'):,}"
    if "staleness" in values:
        weights += f" · what is learned from is {values['staleness']:.1f} updates old"
    troubles = f"{many(progress.restarts, 'restart')} · {many(progress.count('refused_updates'), 'update')} refused"
    if replaced := progress.count("lost_environments"):
        troubles += f" · {many(replaced, 'environment')} replaced"
    if progress.lost():
        troubles += f" · {lost(progress.lost())}"
    return [
        ("evaluated", judged),
        ("acting", acting or "no episode yet"),
        ("speed", f"{speed} · {progress.count('env_steps'):,} steps"),
        ("weights", weights),
        ("troubles", troubles),
    ]


def _bar(parts: Mapping[str, float], width: int = 24) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    drawn, so_far = 0, 0.0
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    for activity, part in ordered:
        so_far += part
        until = round(so_far * width)
        waiting = activity.startswith("waiting")
        text.append(("░" if waiting else "█") * (until - drawn), COLOURS.get(activity, "white"))
        drawn = until
    text.append(" " * (width - drawn) + "  ")
    shown: list[Any] = [(activity, part) for activity, part in ordered if part >= 0.005]
    for index, (activity, part) in enumerate(shown):
        text.append(" · " if index else "")
        text.append(f"{activity} {part:.0%}", "dim" if activity.startswith("waiting") else COLOURS.get(activity, ""))
    return text


def summary(result: Result) -> list[str]:
    """What the user is told at the end."""
    lines = []
    score = "no evaluation" if result.eval_return is None else f"return {amount(result.eval_return)}"
    if result.reached:
        lines.append(
            f"reached {result.target:,.12g} after {result.seconds_to_target:.1f} s of training: {score}, confirmed"
        )
    else:
        wanted = "" if result.target is None else f", {result.target:,.12g} was not reached"
        lines.append(f"stopped by {result.stopped_by}: {score}{wanted}")
    if result.saved_version not in (None, result.eval_version) and result.eval_version is not None:
        lines.append(
            f"that return is of the weights after {many(result.eval_version, 'update')}; those that were saved, after "
            f"{many(result.saved_version or 0, 'update')}, were not evaluated"
        )
    lines.append(
        f"{result.env_steps:,} steps in {result.train_seconds:.1f} s ({result.env_steps_per_second:,.0f}/s), "
        f"{result.learner_steps:,} updates; {result.wall_seconds:.1f} s in all"
    )
    lines.append(f"{many(result.restarts, 'restart')}, {many(result.refused_updates, 'update')} refused")
    if result.lost:
        lines.append(f"{lost(result.lost)} with nodes that were started again")
    lines.append(f"bottleneck: {result.bottleneck}")
    lines.append(f"run directory: {result.run_dir}")
    if result.saved_version is not None:
        lines.append(f"play it again: shoal eval {result.run_dir}")
    return lines
