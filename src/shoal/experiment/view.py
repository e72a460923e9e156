"""What the user sees while a run goes on: a live view in a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TextIO

from shoal.analysis.measures import key_measures, measures, packed
from shoal.experiment.progress import Progress, by_role, titles
from shoal.runs.options import Result

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
LINE_EVERY, LINE_AT_LEAST_EVERY = 2.0, 60.0  # seconds between two plain lines, at first and in a long run
FRAME_EVERY = 0.25
BAR_LINES = 2  # in which a node's activities are told, the largest first: a view that is too high is cut off
NOTES = 20  # lines above the panel that are drawn again when the terminal's width has changed
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


class Lines(Quiet):
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


class Live:
    """A panel that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._title = ""
        self._last: Progress | None = None
        self._above: deque[tuple[str, str | None]] = deque(maxlen=NOTES)  # what stands above the panel, and its style
        self._start()

    def _start(self) -> None:
        from rich.live import Live as RichLive

        # Drawn by the driver's own loop: a drawing thread would take turns with the nodes of the inline runtime.
        self._live = RichLive(console=self._console, auto_refresh=False, transient=False)
        self._width = self._console.width

    def begin(self, lines: Sequence[str]) -> None:
        self._title = lines[0]
        for text in lines[1:]:
            self._write(text, "dim")
        self._live.start()

    def _write(self, text: str, style: str | None = None) -> None:
        self._above.append((text, style))
        self._console.print(text, style=style, highlight=False, markup=False)

    def _follow_width(self) -> None:
        """A terminal that became narrower has broken the panel's lines, so that drawing over them leaves pieces: what
        it shows is drawn anew."""
        if self._console.width == self._width:
            return
        self._live.stop()
        self._console.clear()
        for text, style in self._above:
            self._console.print(text, style=style, highlight=False, markup=False)
        self._start()
        self._live.start()

    def update(self, progress: Progress) -> None:
        self._last = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + FRAME_EVERY
            self._follow_width()
            self._live.update(panel(self._title, progress), refresh=True)

    def note(self, text: str) -> None:
        self._write(text)

    def end(self) -> None:
        if self._last is not None:
            self._follow_width()
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
        counted = ", and --stop-seconds counts from the first step" if "seconds" in progress.stops else ""
        return f"{progress.elapsed:6.1f} s · no step yet: the nodes are starting{counted}"
    parts = [f"{progress.elapsed:6.1f} s", *_pace(progress)]
    if "actor_return" in progress.values:
        parts.append(f"return {amount(progress.values['actor_return'])}")
    if progress.evaluation is not None:
        parts.append(f"eval {amount(progress.evaluation['eval_return'])}")
    parts += key_measures(progress.values)
    if "staleness" in progress.values:
        parts.append(f"staleness {progress.values['staleness']:.1f}")
    parts += [part for part in _towards(progress) if "%" in part][:1]
    parts += _replaced(progress)
    if progress.restarts:
        parts.append(f"restarts {progress.restarts}")
    if progress.lost():
        parts.append(lost(progress.lost()))
    if progress.count("refused_updates"):
        parts.append(f"refused {progress.count('refused_updates')}")
    if progress.quiet >= NO_NEWS:
        parts.append(f"no news for {progress.quiet:.0f} s")
    return " · ".join(parts)


def _replaced(progress: Progress) -> list[str]:
    """The environments that were lost, and how much of what was played that is."""
    told = []
    if lost := progress.count("lost_environments"):
        told.append(f"{many(lost, 'environment')} replaced" + _of_episodes(progress.lost_share()))
    if lost := progress.count("lost_evaluations"):
        told.append(f"{many(lost, 'evaluation episode')} lost")
    return told


def _of_episodes(share: float | None) -> str:
    return "" if share is None else f" ({share:.1%} of the episodes)"


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


class Fitted:
    """Text that is made for the width that there is."""

    def __init__(self, lines: Callable[[int], Sequence[Text | str]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in self._lines(options.max_width):
            yield Text(line) if isinstance(line, str) else line


def panel(title: str, progress: Progress) -> RenderableType:
    """The live view's content."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(ratio=1)
    for name, items in _facts(progress):
        rows.add_row(name, Fitted(partial(_packed_items, items)))
    called = titles(progress.times, progress.roles)
    for role, parts in by_role(progress.times, progress.roles).items():
        rows.add_row(called[role], Fitted(partial(_bar, parts)))
    rows.add_row("bottleneck", Text(progress.bottleneck()))
    minutes, seconds = divmod(int(progress.elapsed), 60)
    return Panel(rows, title=title, title_align="left", subtitle=f"{minutes}:{seconds:02d}", subtitle_align="right")


Items = Callable[[int], list[str]]  # what a row says, for so many columns


def _packed_items(items: Items, width: int) -> list[str]:
    return packed(items(width), width)


def _pace(progress: Progress) -> list[str]:
    """How many steps, how fast, and how fast the learner is; of who only learns, updates."""
    rates, steps, updates = progress.rates, progress.count("env_steps"), progress.count("learner_steps")
    speed = f"{rates.get('learner_steps', 0):,.0f} updates/s"
    if updates and not steps:
        return [f"{updates:,} updates", speed]
    learning = f"waiting for data: {progress.waits_for}" if progress.waits_for else speed
    return [f"{steps:,} steps", f"{rates.get('env_steps', 0):,.0f} steps/s", learning]


def _facts(progress: Progress) -> list[tuple[str, Items]]:
    values = progress.values
    judged, acted = ["no evaluation yet"], ["no episode yet"]
    if progress.evaluation is not None:
        judged = [amount(progress.evaluation["eval_return"], progress.evaluation["spread"])]
        judged += [f"best {amount(progress.best)}"] if progress.best is not None else []
    if "actor_return" in values:
        acted = [amount(values["actor_return"])]
        acted += [f"{values['episode_length']:,.0f} steps each"] if "episode_length" in values else []
    total, *speed = _pace(progress)
    speed += [f"no news for {progress.quiet:.0f} s"] if progress.quiet >= NO_NEWS else []
    weights = [f"version {progress.count('learner_steps'):,}"]
    if "staleness" in values:
        weights.append(f"data {values['staleness']:.1f} updates old")
    refused = progress.count("refused_updates")
    troubles = [many(progress.restarts, "restart")] if progress.restarts else []
    troubles += [f"{many(refused, 'update')} refused"] if refused else []
    troubles += _replaced(progress)
    troubles += [lost(progress.lost())] if progress.lost() else []
    plain = {
        **({"towards": towards} if (towards := _towards(progress)) else {}),
        "speed": [*speed, total],
        **measures(values),
        "weights": weights,
        **(
            {"machines": [f"{name}: {there}" for name, there in progress.machines.items()]} if progress.machines else {}
        ),
        **({"troubles": troubles} if troubles else {}),
    }
    return [
        ("evaluated", partial(_drawn, progress.evaluated.points, judged)),
        ("acting", partial(_drawn, progress.acted.points, acted)),
        *((name, partial(_plain, items)) for name, items in plain.items()),
    ]


def _plain(items: list[str], width: int) -> list[str]:
    return items


def _drawn(points: Sequence[float], told: list[str], width: int) -> list[str]:
    """A course and what it has come to, the course in what room there is."""
    room = min(32, max(8, width - len(" · ".join(told)) - 2))
    course = sparkline(points, room)
    return [f"{course}  {told[0]}", *told[1:]] if course else told


def _towards(progress: Progress) -> list[str]:
    """How far each stop rule is, in words."""
    told = []
    for name, (done, wanted, left) in progress.towards().items():
        if name == "return":
            told.append(f"return {'–' if done is None else amount(done)} of {wanted:,.12g}")
            continue
        share = f"{min(1.0, (done or 0.0) / wanted):.0%} of {wanted:,.12g} {name}"
        told.append(share + (f", {_clock(left)} left" if left is not None and progress.counts else ""))
    return told


def _clock(seconds: float) -> str:
    """A time as people read it: 0:42, 12:05, 3 h 20, 5 days."""
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:,.0f} days"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _bar(parts: Mapping[str, float], width: int) -> list[Text]:
    """Where a node's time goes: drawn, and in words beside it."""
    from rich.text import Text

    long = min(24, max(8, width // 5))
    drawn, so_far, bar = 0, 0.0, Text()
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    for activity, part in ordered:
        so_far += part
        until = round(so_far * long)
        waiting = activity.startswith("waiting")
        bar.append(("░" if waiting else "█") * (until - drawn), COLOURS.get(activity, "white"))
        drawn = until
    bar.append(" " * (long - drawn))
    shown = {f"{activity} {part:.0%}": activity for activity, part in ordered if part >= 0.005}
    if max(map(len, shown), default=0) > width - long - 2:  # no room beside it
        return [bar, *(_coloured(line, shown, Text()) for line in packed(shown, width)[:BAR_LINES])]
    lines = packed(shown, width - long - 2)[:BAR_LINES] or [""]
    return [_coloured(line, shown, bar if not index else Text(" " * long)) for index, line in enumerate(lines)]


def _coloured(line: str, shown: Mapping[str, str], before: Text) -> Text:
    before.append("  " if before else "")
    for index, item in enumerate(line.split(" · ")):
        activity = shown.get(item, "")
        before.append(" · " if index else "")
        before.append(item, "dim" if activity.startswith("waiting") else COLOURS.get(activity, ""))
    return before


def summary(result: Result, playable: bool = True) -> list[str]:
    """What the user is told at the end. `playable`: the run has an environment that can be made again."""
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
    seconds, updates = result.train_seconds, many(result.learner_steps, "update")
    pace = f"{result.env_steps:,} steps in {seconds:.1f} s ({result.env_steps_per_second:,.0f}/s), {updates}"
    if result.learner_steps and not result.env_steps:  # it learned from data
        pace = f"{updates} in {seconds:.1f} s ({result.learner_steps / max(seconds, 1e-3):,.0f}/s), no environment step"
    lines.append(f"{pace}; {result.wall_seconds:.1f} s in all")
    lines.append(f"{many(result.restarts, 'restart')}, {many(result.refused_updates, 'update')} refused")
    if result.refused_updates:
        lines.append(
            "a refused update changed nothing, as its loss or gradient was not finite: where it happens again, lower "
            "the learning rate, clip the rewards, or look for NaN in the environment's observations"
        )
    if result.too_many_lost is not None:
        lines.append(result.too_many_lost)
    elif result.lost_environments:
        lines.append(f"{many(result.lost_environments, 'environment')} replaced" + _of_episodes(result.lost_share))
    if result.lost:
        lines.append(f"{lost(result.lost)} with nodes that were started again or have left")
    lines.append(f"bottleneck: {result.bottleneck}")
    if result.advice is not None:
        lines.append(f"for more speed: {result.advice}")
    lines.append(f"run directory: {result.run_dir}")
    if result.saved_version is not None:
        lines.append(f"play it again: shoal eval {result.run_dir}{'' if playable else ' --env ENV'}")
    return lines
