"""What a node that was lost takes from the driver when it is started again: what this process has of it, or the disk.

The metrics go on from the driver's newest snapshot, a replay from its last save. (A learner and the gradient service
find theirs with the weight service; only where there is none yet they take what they were first started from. Whoever
counts tells it again.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.experiment.replay_saves import folder_of, replay_nodes
from shoal.program import Program
from shoal.runtime import Supervisor
from shoal.services.metrics import next_life
from shoal.types import Role


class Reviving:
    """The states of lost nodes, as the supervisor asks for them."""

    def __init__(self, program: Program, run: Path, saved: Mapping[str, str], note: Callable[[str], None]) -> None:
        self._program, self._run, self._note = program, run, note
        self._snapshot: tuple[Mapping[str, Any], int] | None = None
        self._saved = dict(saved)  # the name of each replay's newest complete save

    def attach(self, supervisor: Supervisor) -> None:
        for node in self._program.with_role(Role.METRICS):
            supervisor.states[node.name] = partial(self._metrics, node.name)
        for name in replay_nodes(self._program):
            supervisor.states[name] = partial(self._replay, name)
        for node in self._program.with_role(Role.LEARNER, Role.PUBLISHER):
            supervisor.states[node.name] = partial(self._start_of, node.name)

    def read(self, snapshot: Mapping[str, Any], evaluations: int) -> None:
        """The driver has read this of the metrics, and so many evaluations in all."""
        self._snapshot = snapshot, evaluations

    def saved(self, tags: Mapping[str, str]) -> None:
        """Replays have saved their tables under these names."""
        self._saved.update(tags)

    def _metrics(self, name: str) -> Any:
        if self._snapshot is None:
            return self._start_of(name)
        return next_life(*self._snapshot)

    def _start_of(self, name: str) -> Any:
        return self._program.nodes[name].start

    def _replay(self, name: str) -> Any:
        tag = self._saved.get(name)
        self._note(f"{name} comes back " + ("empty" if tag is None else f"with what it has saved in checkpoint {tag}"))
        return None if tag is None else {"path": str(folder_of(self._run, name)), "tag": tag}
