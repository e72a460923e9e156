"""What the weight service keeps: weights, and snapshots for a node's next life, brought again when that is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from shoal.learning import Learning
from shoal.nets.weights import lent_weights
from shoal.program import Future, NodeDied, current, futures
from shoal.services.weights import SharedWeights, WeightStore
from shoal.state import State
from shoal.sync import monotonic
from shoal.versions import make_version

SNAPSHOT_EVERY = 2.0  # seconds, at the least, between two snapshots for the learner's next life
SNAPSHOT_SHARE = 0.01  # of the learner's time that they may take
LOOK = 0.5  # seconds between two looks at which version the service has


class Keeper:
    """Has the weight service keep snapshots, and finds out when it has lost them and the weights."""

    def __init__(self, weights: WeightStore) -> None:
        self._weights = weights
        self._next_snapshot = 0.0
        self._next_look = 0.0
        self._asked: tuple[Future, int] | None = None

    def due(self) -> bool:
        return monotonic() >= self._next_snapshot

    def keep(self, states: Callable[[], Mapping[str, State]], wait: bool = False) -> None:
        """Have the states of nodes kept, as checkpoints have them; `wait` until they are."""
        begun = monotonic()
        with contextlib.suppress(NodeDied):  # one of those who are needed for it is on its way back
            kept = [self._service().keep_snapshot(node, state) for node, state in states().items()]
            for call in kept if wait else ():
                call.result()
        self._next_snapshot = begun + max(SNAPSHOT_EVERY, (monotonic() - begun) / SNAPSHOT_SHARE)

    def lacks(self, version: int) -> bool:
        """Whether the weight service was lost and has not this version: it needs both, weights and a snapshot. Asks
        without waiting, and not too often."""
        if not current().runtime.nodes_may_die:
            return False
        if self._asked is None:
            if monotonic() < self._next_look:
                return False
            self._next_look = monotonic() + LOOK
            known = self._weights.announced if isinstance(self._weights, SharedWeights) else version
            self._asked = self._service().version(), known
        call, expected = self._asked
        if not call.done():
            return False
        self._asked = None
        try:
            lacks = bool(call.result() < expected)
        except NodeDied:
            return False
        if lacks:
            self._next_snapshot = 0.0
        return lacks

    def _service(self) -> Any:
        """The futures of the service itself, where weights are shared in memory too."""
        return futures(self._weights.store if isinstance(self._weights, SharedWeights) else self._weights)


class Publication:
    """A learner's weights, published under its versions. Of several, which are equal, rank 0 publishes; all know the
    version."""

    def __init__(self, weights: WeightStore, learning: Learning) -> None:
        self._weights, self._learning = weights, learning

    def publish(self) -> None:
        learning = self._learning
        learning.published = make_version(learning.generation, learning.updates)
        if learning.rank == 0:
            with contextlib.suppress(NodeDied):  # the service is on its way back, and gets the next version
                # the service copies them before it returns, and nobody learns meanwhile
                self._weights.publish(lent_weights(learning.learner.network), learning.published)
