"""Who is told what happens in a run: the user's callbacks, which may end it, and the sinks of `--log`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.runs.sinks import Sinks
from shoal.runs.tables import flat

Callback = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Callbacks:
    """Each is called in the driver with a flat dict, and ends the run in order when it returns True."""

    on_progress: Callback | None = None  # once a second: counts, rates, losses
    on_evaluation: Callback | None = None  # eval_return, spread, env_steps, seconds, …
    on_checkpoint: Callback | None = None  # path, updates

    def __post_init__(self) -> None:
        for name, callback in vars(self).items():
            if callback is not None and not callable(callback):
                raise UserError(f"{name} is {callback!r}: give a function that takes a dict.")


class Listeners:
    """Told of every row of a run's metrics."""

    def __init__(self, callbacks: Callbacks, warn: Callable[[str], None]) -> None:
        self._callbacks, self._warn = callbacks, warn
        self._sinks: Sinks | None = None
        self._checkpoint: Path | None = None
        self.stop = False  # a callback has asked for it
        self.ending = False  # what is raised from now on is told, and keeps nothing from being saved

    def begin(self, sinks: Sinks) -> None:
        self._sinks = sinks

    def tell(self, kind: str, row: Mapping[str, Any]) -> None:
        callback = getattr(self._callbacks, f"on_{kind}", None)
        if callback is None and (self._sinks is None or kind not in ("progress", "evaluation")):
            return
        told = flat(row)
        if self._sinks is not None and kind != "checkpoint":
            self._sinks.write(_logged(kind, told))
        if callback is not None:
            try:
                self.stop |= callback(told) is True
            except Exception as error:
                if not self.ending:
                    raise
                self._warn(f"on_{kind} raised {type(error).__name__}: {error}")

    def checkpoint(self, newest: Path | None, updates: int) -> None:
        """To be called often with the newest checkpoint."""
        if newest is not None and newest != self._checkpoint:
            self._checkpoint = newest
            self.tell("checkpoint", {"path": str(newest), "updates": updates})

    def close(self) -> None:
        if self._sinks is not None:
            self._sinks.close()


def _logged(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as sinks show it, with one curve for each name: `episodes` and `version` of an evaluation are not those of
    the run, and the return that rows of progress repeat is one of earlier steps."""
    if kind != "evaluation":
        return {name: value for name, value in row.items() if name != "eval_return"}
    return {name if name in ("eval_return", "env_steps") else f"evaluation/{name}": row[name] for name in row}
