"""A page that trains PPO in environments of torch tensors: its source is the one thing that it changes.

What turns tensors into arrays or numbers, and back, is counted in the learner's own process while it acts and while it
learns.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.algorithms import ppo
from shoal.algorithms.ppo import PPO, PRESETS, make_policy
from shoal.config import Count, config
from shoal.envs import EnvSpec
from shoal.envs.tensors import TensorEnvs
from shoal.envs.torch_tasks.cartpole import CartPoles
from shoal.learning import Learning, Taken, Update
from shoal.loops.device import RolloutSource
from shoal.loops.wiring import Settings, source_program
from shoal.program import Program

__all__ = ["PRESETS", "Config", "make_policy", "program"]

HOST_READ = "number read"  # by item(), int(), bool(), …: whichever way, a device would be waited for
TO_HOST = ("numpy", "cpu", "tolist", "__array__")


@config(envs_per_actor=64, unroll=32, learning_rate=3e-3, reward_scale=0.1)
class Config(ppo.Config):
    autoreset: Literal["next_step", "same_step"] = "next_step"
    """When an environment is reset: in a step of its own, or within the one that ends an episode."""
    limit: Count = 500
    """Steps after which an episode is truncated."""
    counted: bool = False
    """Whether conversions are counted; it takes time."""


class Reads(TorchDispatchMode):
    """Counts numbers that are read out of tensors, and tensors that move to another device."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self._found[HOST_READ] += 1
        elif func is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self._found["moved"] += 1
        return result


@contextlib.contextmanager
def counting(found: Counter[str]) -> Iterator[None]:
    """Count what becomes an array or a number, and the other way round, while it lasts."""

    def counted(owner: Any, name: str, of_arrays: bool = False) -> Any:
        called = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            if not of_arrays or any(isinstance(x, np.ndarray | np.generic) for x in (*given, *named.values())):
                found[name] += 1
            return called(*given, **named)

        return mock.patch.object(owner, name, call)

    with contextlib.ExitStack() as stack:
        for name in TO_HOST:
            stack.enter_context(counted(Tensor, name))
        stack.enter_context(counted(torch, "from_numpy"))
        for name in ("as_tensor", "tensor", "asarray"):
            stack.enter_context(counted(torch, name, of_arrays=True))
        stack.enter_context(Reads(found))
        yield


class CountedRollouts(RolloutSource):
    """Counts for itself while it acts, and for the learner from then until it hears what came of a batch. (What is
    published after that crosses processes, and is arrays.)"""

    def __init__(self, learning: Learning, **options: Any) -> None:
        super().__init__(learning, **options)
        self._found: dict[str, Counter[str]] = {"acting": Counter(), "learning": Counter()}
        self._batches = 0
        self._learning_phase = contextlib.ExitStack()

    def take(self) -> Taken:
        with counting(self._found["acting"]):
            taken = super().take()
        self._batches += 1
        self._learning_phase.enter_context(counting(self._found["learning"]))
        return taken

    def learned(self, taken: Taken, update: Update) -> None:
        self._learning_phase.close()

    def counts(self) -> Mapping[str, float]:
        found = {f"{phase}: {name}": n for phase, counter in self._found.items() for name, n in counter.items()}
        return {**super().counts(), **found, "batches": self._batches}


def make_envs(cfg: Config, seed: int, device: torch.device) -> TensorEnvs:
    return TensorEnvs(CartPoles(cfg.envs_per_actor, seed, device, cfg.autoreset, cfg.limit))


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    source = partial(
        CountedRollouts if cfg.counted else RolloutSource,
        make_envs=partial(make_envs, cfg),
        make_policy=partial(make_policy, cfg, env),
        rows=cfg.unroll,
    )
    return source_program(cfg, env, settings, learner=PPO, policy=make_policy, source=source)
