"""Batches computed by a policy, in this process: what is quick on the event loop itself, the rest in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

from shoal.acting import PerEnvironment
from shoal.playing.policy import TrainedPolicy
from shoal.serving.batching import Computed, Done, Work
from shoal.types import Array, Columns

QUICK = 0.002  # seconds that the loop may stand still: to hand a batch to a thread and back costs about 0.1 ms
SHARE = 0.2  # of a new measurement in the mean


def act(
    policy: TrainedPolicy, explore: bool, observation: Any, state: Columns, first: Array, environments: Array
) -> tuple[Array, Columns]:
    """Actions [B, ...] as the environment takes them, and the state after them."""
    acting = policy.exploring if explore else policy.greedy
    if explore and isinstance(acting, PerEnvironment):
        config = policy.config
        total = getattr(config, "actors", 1) * getattr(config, "envs_per_actor", 1)
        acting.set_environments(environments % total, total)
    action, after, _ = acting.act(observation, state, first)
    return np.asarray(policy.to_environment(action)), {name: np.asarray(value) for name, value in after.items()}


class Here:
    """Computes one batch at a time in this process."""

    def __init__(self, policy: TrainedPolicy, *, version: int = 1) -> None:
        self._policy, self._version = policy, version
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "shoal-serve")
        self._busy = False
        self._seconds: dict[int, float] = {}  # that a batch takes, by its size in binary digits
        self.wake: Callable[[], None] = lambda: None

    @property
    def free(self) -> bool:
        return not self._busy

    @property
    def ready(self) -> bool:
        return True

    def take(self, policy: TrainedPolicy, version: int) -> None:
        """Batches from here on are this policy's."""
        self._policy, self._version = policy, version

    def start(self, work: Work, done: Done) -> None:
        size = len(work.first).bit_length()
        policy, version = self._policy, self._version
        if self._seconds.get(size, 1.0) <= QUICK:
            done(work, self._computed(policy, version, work, size))
            return
        self._busy = True
        future = self._loop.run_in_executor(self._thread, self._computed, policy, version, work, size)
        future.add_done_callback(lambda ended: self._ended(work, ended, done))

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ended(self, work: Work, ended: asyncio.Future[Computed | Exception], done: Done) -> None:
        self._busy = False
        if not ended.cancelled():
            done(work, ended.result())
        self.wake()

    def _computed(self, policy: TrainedPolicy, version: int, work: Work, size: int) -> Computed | Exception:
        begun = perf_counter()
        try:
            action, state = act(policy, work.explore, work.observation, work.state, work.first, work.environments)
        except Exception as error:
            return error
        seconds = perf_counter() - begun
        self._seconds[size] = (1 - SHARE) * self._seconds.get(size, seconds) + SHARE * seconds
        return Computed(action, state, version)
