"""Batches computed by a policy, in this process: what is quick on the event loop itself, the rest in a thread."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
import torch

from shoal import tree
from shoal.acting import PerEnvironment
from shoal.acting.network_policy import NetworkPolicy
from shoal.acting.policy import LAST_REWARD
from shoal.errors import UserError
from shoal.playing.exporting import TOLERANCE, GreedyStep
from shoal.playing.policy import TrainedPolicy
from shoal.serving.batching import Computed, Done, Work
from shoal.types import Array, Columns

QUICK = 0.002  # seconds that the loop may stand still: to hand a batch to a thread and back costs about 0.1 ms
SHARE = 0.2  # of a new measurement in the mean
TRIED = (1, 3, 8)  # rows on which a traced step is compared with the policy


class Acts:
    """A policy as servers ask it: batches in, actions as the environment takes them out.

    The greedy step of a torch network is traced once where that gives the same, which saves what Python costs between
    its layers: 345 → 290 µs for the Nature CNN and one observation.
    """

    def __init__(self, policy: TrainedPolicy, explore: bool = False) -> None:
        self.policy = policy
        self._step = None if explore else _traced(policy)

    def __call__(
        self, explore: bool, observation: Any, state: Columns, first: Array, environments: Array
    ) -> tuple[Array, Columns]:
        """Actions [B, ...] as the environment takes them, and the state after them."""
        policy = self.policy
        if self._step is not None and not explore:
            return self._step(observation, state)
        acting = policy.exploring if explore else policy.greedy
        if explore and isinstance(acting, PerEnvironment):
            config = policy.config
            total = getattr(config, "actors", 1) * getattr(config, "envs_per_actor", 1)
            acting.set_environments(environments % total, total)
        action, after, _ = acting.act(observation, state, first)
        return np.asarray(policy.to_environment(action)), {name: np.asarray(value) for name, value in after.items()}


Step = Callable[[Any, Columns], tuple[Array, Columns]]


def _traced(policy: TrainedPolicy) -> Step | None:
    """The greedy step as one function of torch; None where the policy is quick without, or it would not be the same."""
    acting = policy.greedy
    if not isinstance(acting, NetworkPolicy) or acting.mirror is not None or acting.device.type != "cpu":
        return None
    try:
        step = GreedyStep(policy).eval()
        kept = [name for name in step.memory if name != LAST_REWARD]
        examples = {rows: _example(step, acting, rows) for rows in TRIED}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is a trace, which is compared below
            trace: Any = torch.jit.trace
            module = torch.jit.freeze(trace(step, _tensors(step, *examples[TRIED[0]]), check_trace=False))
    except (UserError, RuntimeError, TypeError, ValueError):
        return None

    def play(observation: Any, state: Columns) -> tuple[Array, Columns]:
        with torch.inference_mode():
            found = [value.numpy() for value in module(*_tensors(step, observation, state))]
        after = dict(zip(kept, found[2:]))
        if len(kept) < len(step.memory):
            after[LAST_REWARD] = np.zeros(len(found[0]), np.float32)  # until it is told
        return found[0], after

    try:
        same = all(_same(policy, play, observation, state) for observation, state in examples.values())
    except (RuntimeError, TypeError, ValueError):
        return None
    return play if same else None


def _tensors(step: GreedyStep, observation: Any, state: Columns) -> tuple[torch.Tensor, ...]:
    parts = tree.flatten(observation, "observation")
    arrays = [parts[name] for name in step.observations] + [state[name] for name in step.memory]
    return tuple(torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays)


def _example(step: GreedyStep, acting: NetworkPolicy[Any], rows: int) -> tuple[Any, Columns]:
    step.space.seed(rows)
    samples = [tree.flatten(step.space.sample(), "observation") for _ in range(rows)]
    seen = {name: np.stack([np.asarray(sample[name]) for sample in samples]) for name in step.observations}
    seen = {name: value.clip(-10, 10) if value.dtype.kind == "f" else value for name, value in seen.items()}
    state = {name: np.asarray(value) for name, value in acting.initial_state(rows).items()}
    return tree.nest(step.space, seen, "observation"), state


def _same(policy: TrainedPolicy, play: Step, observation: Any, state: Columns) -> bool:
    rows = len(tree.leaf(observation))
    wanted, after, _ = policy.greedy.act(observation, dict(state), np.ones(rows, np.bool_))
    action, memory = play(observation, state)
    pairs = [(np.asarray(policy.to_environment(wanted)), action)]
    pairs += [(np.asarray(after[name]), memory[name]) for name in memory if name != LAST_REWARD]
    return all(
        mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)
        for theirs, mine in pairs
    )


class Here:
    """Computes one batch at a time in this process."""

    def __init__(self, acts: Acts, *, version: int = 1) -> None:
        self._acts, self._version = acts, version
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

    def take(self, acts: Acts, version: int) -> None:
        """Batches from here on are this policy's."""
        self._acts, self._version = acts, version

    def start(self, work: Work, done: Done) -> None:
        size = len(work.first).bit_length()
        acts, version = self._acts, self._version
        if self._seconds.get(size, 1.0) <= QUICK:
            done(work, self._computed(acts, version, work, size))
            return
        self._busy = True
        future = self._loop.run_in_executor(self._thread, self._computed, acts, version, work, size)
        future.add_done_callback(lambda ended: self._ended(work, ended, done))

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ended(self, work: Work, ended: asyncio.Future[Computed | Exception], done: Done) -> None:
        self._busy = False
        if not ended.cancelled():
            done(work, ended.result())
        self.wake()

    def _computed(self, acts: Acts, version: int, work: Work, size: int) -> Computed | Exception:
        begun = perf_counter()
        try:
            action, state = acts(work.explore, work.observation, work.state, work.first, work.environments)
        except Exception as error:
            return error
        seconds = perf_counter() - begun
        self._seconds[size] = (1 - SHARE) * self._seconds.get(size, seconds) + SHARE * seconds
        return Computed(action, state, version)
