"""The weights of a learner, published under its versions."""

from __future__ import annotations

import contextlib

from shoal.learning import Learning
from shoal.nets.weights import export_weights
from shoal.program import NodeDied
from shoal.services.weights import WeightStore
from shoal.versions import make_version


class Publication:
    """Of several learners, which are equal, rank 0 publishes; all know the version."""

    def __init__(self, weights: WeightStore, learning: Learning) -> None:
        self._weights, self._learning = weights, learning

    def publish(self) -> None:
        learning = self._learning
        learning.published = make_version(learning.generation, learning.updates)
        if learning.rank == 0:
            with contextlib.suppress(NodeDied):  # the service is on its way back, and gets the next version
                self._weights.publish(export_weights(learning.learner.network), learning.published)
