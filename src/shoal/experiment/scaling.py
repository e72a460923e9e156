"""A run that grows and shrinks while it goes on: `shoal scale` asks for it, the driver adds and removes nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.program import Program
from shoal.runs.requests import is_waiting, take_scale
from shoal.runtime import Run
from shoal.types import Role

GROW = (Role.ACTOR, Role.WORKER)  # of which a run may have more or fewer while it goes on
ACTORS = "actors"  # the group that the option of this name is for
GROW_EVERY = 5.0  # seconds between two looks at whether there is room for more
MOST_AT_ONCE = 200  # members that a group gets by one request: the run stands still while they are started


def sizes(program: Program) -> dict[str, int]:
    """The groups that can grow and shrink, and how many members each has."""
    counted = {group: program.group(group).members for group in program.stems}
    return {group: len(members) for group, members in counted.items() if members and members[0].role in GROW}


class Scaling:
    """Looks for requests and does what they ask for."""

    def __init__(
        self, run: Run, path: Path, rebuild: Callable[[int], Any], tell: Callable[[str, dict[str, Any]], None]
    ) -> None:
        """`rebuild` makes the config for so many actors, or raises `UserError` where that cannot be; `tell` is told the
        sentence, and what a row of the metrics says of it."""
        self._run, self._path, self._rebuild, self._tell = run, path, rebuild, tell
        self._refused: str | None = None  # what was said of something that cannot be removed

    def look(self) -> Any:
        """Do what is asked for; the config that the run has from now on, where that is another."""
        found = None
        try:
            for group, count in (take_scale(self._path) or {}).items():
                found = self.scale(group, count) or found
        except UserError as refused:
            if str(refused) != self._refused:
                self._tell(f"not scaled: {refused}", {"refused": str(refused)})
            self._refused = str(refused) if is_waiting(self._path) else None
        return found

    def scale(self, group: str, count: int) -> Any:
        program = self._run.program
        before = sizes(program)
        if group not in before:
            raise UserError(f"there is no group {group!r} that can grow or shrink here: there is {', '.join(before)}.")
        if count - before[group] > MOST_AT_ONCE:
            raise UserError(
                f"{group}={count} is {count - before[group]:,} more at once, and a run takes up to {MOST_AT_ONCE} at a "
                f"time, so that it goes on: give {group}={before[group] + MOST_AT_ONCE} or less, and more after that."
            )
        cfg = self._rebuild(count) if group == ACTORS else None
        if count > before[group]:
            self._run.add(*program.next_members(group, count - before[group]))
        leaving = sorted(program.group(group).members, key=lambda node: int(node.name.rpartition("/")[2]))[count:]
        for node in reversed(leaving):
            self._run.remove(node.name)
        lost = "; the open episodes of those that leave are counted as lost" if leaving else ""
        self._tell(f"{group}: {before[group]} → {count}{lost}", {group: count})
        return cfg


class Growing:
    """A run that takes what is free: actors are added while machines have room, as those do that join a cluster."""

    def __init__(self, run: Run, scaling: Scaling, most: int | None) -> None:
        self._run, self._scaling, self._most = run, scaling, most
        self._next_look = 0.0

    def look(self, now: float) -> Any:
        """Add what there is room for; the config that the run has from now on, where that is another."""
        present = sizes(self._run.program).get(ACTORS)
        if self._most is None or present is None or present >= self._most or now < self._next_look:
            return None
        self._next_look = now + GROW_EVERY
        if (room := min(self._run.room(), MOST_AT_ONCE)) < 1:
            return None
        try:
            return self._scaling.scale(ACTORS, min(self._most, present + room))
        except UserError:  # somebody else was faster
            return None


def with_actors(cfg: Any, program: Callable[[Any], Program], count: int) -> Any:
    """The config for so many actors, tried by making its program."""
    changed = dataclasses.replace(cfg, actors=count)
    program(changed)
    return changed
