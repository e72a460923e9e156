"""`shoal sweep`: many runs of one experiment, out of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.cli.commands.common import ERROR, OK, Commands, parse, print_json
from shoal.config import Count
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.sweeps.running import Runner


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What takes the place of settings in the file's table [sweep]."""

    folder: str | None = None
    """Of the sweep; a sweep that was interrupted goes on there. Default: sweeps/ and the file's name."""
    trials: Count | None = None
    """Settings to be tried."""
    parallel: Count | None = None
    """Runs at a time."""
    json: bool = False
    """The last line of stdout is one JSON object."""


def run(words: Sequence[str]) -> int:
    description = (
        "Try values of options: grid, random or Optuna, with seeds, several runs at a time. The same command goes on "
        "with a sweep that was interrupted or killed. The file: docs/sweeps.md."
    )
    options, words = parse(words, "shoal sweep", description, SweepOptions, "FILE.toml")
    if len(words) != 1:
        raise UserError("shoal sweep needs one file: shoal sweep sweep.toml [OPTIONS]; see shoal sweep --help.")
    from shoal.sweeps import report
    from shoal.sweeps.running import sweep

    given = {name: getattr(options, name) for name in ("folder", "trials", "parallel")}
    display = Lines() if options.json or not sys.stdout.isatty() else Live()
    found = sweep(words[0], display=display, **{name: value for name, value in given.items() if value is not None})
    print("\n".join(report.lines(found.trials)), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        rows = [dict(zip(found.trials, row)) for row in zip(*found.trials.values())]
        print_json({**vars(found), "trials": rows})
    return OK if found.best_value is not None else ERROR


def table_rows(runner: Runner) -> list[list[str]]:
    """How every running run stands."""
    from shoal.runs.run_lists import numbers
    from shoal.runs.tables import flat, latest

    rows = [["trial", "seed", "parameters", "steps", "return"]]
    for (number, seed), process in runner.running.items():
        rows_of = latest(process.path)
        counts, judged = (numbers(flat(rows_of.get(kind, {}))) for kind in ("progress", "evaluation"))
        chosen = " ".join(f"{name}={_short(value)}" for name, value in runner.log.trials[number].parameters.items())
        steps = f"{int(counts['env_steps']):,}" if "env_steps" in counts else "starting"
        rows.append(
            [str(number), str(seed), chosen, steps, f"{judged['eval_return']:,.1f}" if "eval_return" in judged else "–"]
        )
    return rows


def headline(runner: Runner) -> str:
    from shoal.sweeps import report

    sweep, trials = runner.sweep, runner.log.trials
    done = sum(len(trial.results) for trial in trials.values())
    failed = sum(report.state_of(sweep, trial) == "failed" for trial in trials.values())
    best = report.best_trial(sweep, runner.log)
    text = f"{done} of {runner.total()} runs done, {len(runner.running)} running"
    text += f", {failed} trials failed" if failed else ""
    if best is not None:
        text += f" · best {sweep.settings.metric} {report.value_of(sweep, best):.5g} (trial {best.number})"
    return text


class Lines:
    """A line for each run that ends."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def update(self, runner: Runner) -> None:
        pass

    def end(self) -> None:
        pass


class Live(Lines):
    """A table that is drawn over itself, and the notes above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console()
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._ticks = 0

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def update(self, runner: Runner) -> None:
        from rich.text import Text

        from shoal.runs.tables import aligned

        self._ticks += 1
        if self._ticks % 4 == 1:
            lines: list[Any] = [headline(runner), *aligned(table_rows(runner))]
            self._live.start()  # at the first: what is wrong with the sweep's file is told before
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def end(self) -> None:
        self._live.stop()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


COMMANDS: Commands = {"sweep": (run, (SweepOptions,))}
