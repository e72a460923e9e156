"""Environments with known returns, and a policy that remembers which weights it plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from shoal.step import Step


class ScriptedEnvs:
    """Environment i plays `script[i]`, episode after episode: lists of rewards. A reset ends the episodes that are
    open; after the last one of its script an environment begins again."""

    def __init__(self, script: Sequence[Sequence[Sequence[float]]], at_step: Callable[[], None] = lambda: None) -> None:
        self._script, self._at_step = script, at_step
        self.count = len(script)
        self.steps = 0
        self.stacks: dict[str, int] = {}  # nothing to be stacked
        self._episode = [-1] * self.count
        self._rest: list[Iterator[float]] = [iter(())] * self.count
        self._left = [0] * self.count

    def reset(self) -> Any:
        for index in range(self.count):
            self._begin(index)
        return np.zeros((self.count, 1), np.float32)

    def losses(self) -> list[str]:
        return []

    def _begin(self, index: int) -> None:
        self._episode[index] += 1
        rewards = self._script[index][self._episode[index] % len(self._script[index])]
        self._rest[index], self._left[index] = iter(rewards), len(rewards)

    def step(self, action: Any) -> Step:
        self._at_step()
        self.steps += 1
        reward, done, valid = np.zeros(self.count, np.float32), np.zeros(self.count, bool), np.ones(self.count, bool)
        for index in range(self.count):
            if self._left[index] == 0:  # the row that resets
                self._begin(index)
                valid[index] = False
                continue
            reward[index] = next(self._rest[index])
            self._left[index] -= 1
            done[index] = self._left[index] == 0
        truncated = done & (np.arange(self.count) % 2 == 1)
        return Step(np.zeros((self.count, 1), np.float32), reward, done & ~truncated, truncated, reset=~valid)

    def episodes(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def rounds_of(*returns: float, count: int = 2) -> list[list[list[float]]]:
    """A script in which all environments have the same return in every round of one episode each, in two steps."""
    return [[[value / 2, value / 2] for value in returns]] * count


class RememberingPolicy:
    """Acts anyhow."""

    def __init__(self) -> None:
        self.loaded: list[float] = []

    def initial_state(self, count: int) -> dict[str, Any]:
        return {}

    def act(self, observation: Any, state: Any, first: Any) -> Any:
        return np.zeros(len(first), np.int64), state, {}

    def load(self, weights: Any) -> None:
        self.loaded.append(float(weights["w"][0]))
