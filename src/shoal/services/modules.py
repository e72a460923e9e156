"""Modules on the weight service: a `state_dict` goes in, and comes out of it in another node."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from shoal.services.weights import WeightStore
from shoal.state import as_arrays, as_tensors
from shoal.types import Array, Columns
from shoal.versions import NONE

_NOTE = "note/"  # what is published beside the module's own tensors


class SharedModule:
    """A module whose weights several nodes share through a `WeightStore`, each with a module of its own.

    The module's tensors are read when they are published, never before: an optimizer may move them.
    """

    def __init__(self, store: WeightStore, module: nn.Module) -> None:
        self._store = store
        self.module = module
        self.version = NONE  # of the newest weights that this node has seen or published
        self.notes: dict[str, Array] = {}  # numbers that were published with them

    def publish(self, version: int | None = None, **notes: Any) -> None:
        """Publish the module as it is now, by default as the version after the newest seen."""
        version = self.version + 1 if version is None else version
        self._store.publish(self._weights(notes), version)
        self._seen(version, notes)

    def publish_if_newest(self, **notes: Any) -> bool:
        """Publish only if nobody has published since the newest that was seen; if somebody has, `refresh` first."""
        if not self._store.compare_and_set(self._weights(notes), self.version, self.version + 1):
            return False
        self._seen(self.version + 1, notes)
        return True

    def look(self) -> bool:
        """See the newest version and its notes without loading it; False when it is the one seen before."""
        found = self._store.newer(self.version)
        if found is not None:
            self.version, self.notes = found[0], _notes_of(found[1])
        return found is not None

    def refresh(self, timeout: float | None = 0.0) -> bool:
        """Load newer weights into the module, waiting up to `timeout` seconds (None: for ever); whether there were."""
        found = self._store.newer(self.version) if timeout == 0.0 else self._store.wait(self.version, timeout)
        if found is None:
            return False
        self.module.load_state_dict(as_tensors({k: v for k, v in found[1].items() if not k.startswith(_NOTE)}))
        self.version, self.notes = found[0], _notes_of(found[1])
        return True

    def _weights(self, notes: dict[str, Any]) -> Columns:
        arrays: Columns = as_arrays(self.module.state_dict())
        return arrays | {_NOTE + name: np.asarray(value) for name, value in notes.items()}

    def _seen(self, version: int, notes: dict[str, Any]) -> None:
        self.version, self.notes = version, {name: np.asarray(value) for name, value in notes.items()}


def _notes_of(weights: Columns) -> dict[str, Array]:
    return {name.removeprefix(_NOTE): value for name, value in weights.items() if name.startswith(_NOTE)}
