"""`shoal scale`: more or fewer actors for a run that goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.commands.common import OK, Commands, parse, warn
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.runs.run_lists import RunState

LOOK = 0.1  # seconds between two looks at whether the run has heard


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """How long to wait."""

    wait: float = 15.0
    """Seconds to wait for the run's answer."""


def run(words: Sequence[str]) -> int:
    description = "Give a run more or fewer actors while it goes on."
    options, words = parse(words, "shoal scale", description, ScaleOptions, "RUN actors=N")
    if len(words) < 2 or any("=" not in word for word in words[1:]):
        raise UserError("shoal scale needs a run directory and what to change: shoal scale runs/NAME actors=4.")
    path = Path(words[0])
    sizes: dict[str, int] = {}
    for group, size in (_size(word) for word in words[1:]):
        if sizes.setdefault(group, size) != size:
            raise UserError(f"{group} is given twice, as {sizes[group]} and as {size}: give one number.")
    from shoal.runs import requests
    from shoal.runs.run_lists import state_of
    from shoal.runs.tables import latest

    if (found := state_of(path)).state != "running":
        raise _not_running(found)
    known = latest(path).get("progress", {}).get("members", sizes)
    for group in sizes:
        if group not in known:
            raise UserError(f"{path} has no group {group!r} that can grow or shrink: it has {', '.join(known)}.")
    before = latest(path).get("scale")
    requests.ask_to_scale(path, sizes)
    deadline = time.monotonic() + options.wait
    while requests.is_waiting(path) or latest(path).get("scale") == before:
        if (found := state_of(path)).state != "running":
            requests.withdraw(path)  # or a run that goes on from there would take it
            raise _not_running(found)
        if time.monotonic() > deadline:
            warn(f"{path} has not answered yet; it does what was asked for when it looks the next time")
            return OK
        time.sleep(LOOK)
    answer = latest(path)["scale"]
    if "refused" in answer:
        raise UserError(answer["refused"])
    print(answer.get("text", ""))
    return OK


def _not_running(run: RunState) -> UserError:
    remedy = f"shoal resume {run.path} --actors N goes on with another number" if run.resumable else "it has ended"
    return UserError(f"The run in {run.path} is not running ({run.state}): {remedy}.")


def _size(word: str) -> tuple[str, int]:
    from shoal.runs.requests import check_size

    group, _, text = word.partition("=")
    try:
        size = int(text)
    except ValueError:
        raise UserError(f"{word} says no number: give a whole one, as in actors=4.") from None
    return group, check_size(group, size)


COMMANDS: Commands = {"scale": (run, (ScaleOptions,))}
