"""`shoal scale`: more or fewer actors for a run that goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.commands.common import OK, Commands, parse, warn
from shoal.errors import UserError

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
    sizes = dict(_size(word) for word in words[1:])
    from shoal.runs import requests
    from shoal.runs.run_lists import state_of
    from shoal.runs.tables import latest

    state = state_of(path).state
    if state != "running":
        more = (
            f"shoal resume {path} --actors N starts it with another number" if state != "finished" else "it has ended"
        )
        raise UserError(f"The run in {path} is not running ({state}): {more}.")
    known = latest(path).get("progress", {}).get("members", sizes)
    for group in sizes:
        if group not in known:
            raise UserError(f"{path} has no group {group!r} that can grow or shrink: it has {', '.join(known)}.")
    before = latest(path).get("scale")
    requests.ask_to_scale(path, sizes)
    deadline = time.monotonic() + options.wait
    while requests.is_waiting(path) or latest(path).get("scale") == before:
        if time.monotonic() > deadline:
            warn(f"{path} has not answered yet; it does what was asked for when it looks the next time")
            return OK
        time.sleep(LOOK)
    answer = latest(path)["scale"]
    if "refused" in answer:
        raise UserError(answer["refused"])
    print(answer.get("text", ""))
    return OK


def _size(word: str) -> tuple[str, int]:
    from shoal.runs.requests import check_size

    group, _, text = word.partition("=")
    try:
        size = int(text)
    except ValueError:
        raise UserError(f"{word} says no number: give a whole one, as in actors=4.") from None
    return group, check_size(group, size)


COMMANDS: Commands = {"scale": (run, (ScaleOptions,))}
