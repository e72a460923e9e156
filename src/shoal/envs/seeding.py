"""Episodes whose seeds are known: every reset of an environment gets one of its own, by the episode's number."""

from __future__ import annotations

from typing import Any

import gymnasium

from shoal.envs.vector import Envs
from shoal.envs.vectorizers import InProcess

LARGEST = 2**31


class _SeededResets(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Resets with one seed after another, whatever it is asked for."""

    def __init__(self, env: gymnasium.Env[Any, Any], first: int, stride: int) -> None:
        super().__init__(env)
        self._next, self._stride = first, stride

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seed, self._next = self._next % LARGEST, self._next + self._stride
        return self.env.reset(seed=seed, options=options)


def number_episodes(envs: Envs, seed: int) -> bool:
    """From the next reset on, episode k of environment b of B has the seed `seed_of(seed, b, k, B)`; False where the
    vector steps its environments itself and cannot be told."""
    vector = envs._vector
    if not isinstance(vector, InProcess):
        return False
    count = envs.count
    vector.envs = [_SeededResets(env, seed + number, count) for number, env in enumerate(vector.envs)]
    return True


def seed_of(seed: int, environment: int, episode: int, environments: int) -> int:
    return (seed + environment + episode * environments) % LARGEST
