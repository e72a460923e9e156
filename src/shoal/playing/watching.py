"""Looking on while a trained policy plays: how far it is, and whether it only stands there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal import tree
from shoal.step import Step

PATIENCE = 5.0  # seconds after which it is said that episodes are still played, and then again after twice as many
STILL = 500  # steps in which nothing changes and nothing is gained, after which a policy stands still


class Onlooker:
    """Is asked before every step whether to give up, which it never does, and shown what came of the step."""

    def __init__(self, tell: Callable[[str], None], environments: int) -> None:
        self._tell, self._environments = tell, environments
        self._steps, self._due = 0, time.monotonic() + PATIENCE
        self._last: dict[str, Any] = {}
        self._still, self._told = np.zeros(environments, np.int64), False

    def give_up(self) -> bool:
        if time.monotonic() >= self._due:
            where = f" in each of {self._environments} environments" if self._environments > 1 else ""
            self._tell(f"still playing: {self._steps:,} steps{where} so far (Ctrl-C ends it)")
            self._due = time.monotonic() + 2 * PATIENCE
        self._steps += 1
        return False

    def see(self, step: Step) -> None:
        if self._told:
            return
        seen = {name: np.array(part) for name, part in tree.flatten(step.observation, "observation").items()}
        same = np.asarray(step.reward == 0.0) & ~np.asarray(step.begins)
        for name, part in seen.items():
            if self._last:
                same &= (part == self._last[name]).reshape(len(part), -1).all(axis=1)
        self._last, self._still = seen, np.where(same, self._still + 1, 0)
        if (count := int((self._still >= STILL).sum())) > 0:
            self._told = True
            where = f" in {count} of {self._environments} environments" if self._environments > 1 else ""
            self._tell(
                f"the policy stands still{where}: for {STILL} steps nothing has changed and nothing was gained; it is "
                "played on until the environment ends the episode, or its time limit does (Ctrl-C ends it)"
            )
