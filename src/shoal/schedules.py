"""Learning rates that change: functions of the updates made, or of the environment steps that were trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Schedule = Callable[[int], float]  # updates done → learning rate


def annealed(rate: float, over: int = 0) -> Schedule:
    """From `rate` down to 0 over so many updates; 0: constant."""
    return lambda updates: rate * max(0.0, 1.0 - updates / over) if over else rate


def cosine(rate: float, over: int = 0) -> Schedule:
    """From `rate` down to 0 along half a cosine over so many updates (Loshchilov 2017); 0: constant."""
    return lambda updates: 0.5 * rate * (1.0 + math.cos(math.pi * min(1.0, updates / over))) if over else rate


class AnnealedBySteps:
    """From `rate` down to 0 over so many environment steps, which are counted here; 0: constant."""

    def __init__(self, rate: float, over: int) -> None:
        self._rate, self._over = rate, over
        self.steps = 0

    def __call__(self, updates: int = 0) -> float:
        return self._rate * max(0.0, 1.0 - self.steps / self._over) if self._over else self._rate

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
