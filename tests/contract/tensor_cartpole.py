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
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.algorithms import ppo
from shoal.algorithms.ppo import PPO, PRESETS, make_policy
from shoal.config import Count, config
from shoal.envs import EnvSpec
from shoal.envs.tensors import Autoreset, TensorEnvs
from shoal.learning import Learning, Taken, Update
from shoal.loops.device import RolloutSource
from shoal.loops.wiring import Settings, source_program
from shoal.program import Program

__all__ = ["PRESETS", "CartPoles", "Config", "make_policy", "program"]

LARGEST = np.array([4.8, np.inf, 0.41887903, np.inf], np.float32)
FALLEN = (2.4, 12 * 2 * np.pi / 360)  # position and angle at which an episode terminates
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


class CartPoles:
    """Gymnasium's CartPole-v1, many at once, as tensors of any device."""

    single_observation_space = spaces.Box(-LARGEST, LARGEST)
    single_action_space = spaces.Discrete(2)

    def __init__(self, count: int, seed: int, device: torch.device, autoreset: Autoreset, limit: int = 500) -> None:
        self.num_envs, self._limit, self._same = count, limit, autoreset == "same_step"
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP if self._same else AutoresetMode.NEXT_STEP}
        self._device, self._random = device, torch.Generator(device).manual_seed(seed)

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        self._state = self._begin()
        self._age = torch.zeros(self.num_envs, dtype=torch.int64, device=self._device)
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self._device)
        return self._state, {}

    def step(self, actions: Tensor, /) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        after, age = move(self._state, actions), self._age + 1
        terminated = (after[:, 0].abs() > FALLEN[0]) | (after[:, 2].abs() > FALLEN[1])
        truncated = age >= self._limit  # an episode may end both ways, as in Gymnasium
        ended = terminated | truncated
        resets = ended if self._same else self._ended
        self._state = torch.where(resets.unsqueeze(1), self._begin(), after)
        self._age = age.masked_fill(resets, 0)
        if self._same:
            return self._state, torch.ones_like(after[:, 0]), terminated, truncated, {"final_obs": after}
        self._ended = ended & ~resets
        reward = torch.ones_like(after[:, 0]).masked_fill(resets, 0.0)
        return self._state, reward, terminated & ~resets, truncated & ~resets, {}

    def _begin(self) -> Tensor:
        return torch.rand(self.num_envs, 4, generator=self._random, device=self._device) * 0.1 - 0.05


def move(state: Tensor, actions: Tensor) -> Tensor:
    """The physics: states [B, 4] after 0.02 seconds of a push to the left (0) or to the right (1)."""
    x, speed, angle, turning = state.unbind(1)
    force = 20.0 * actions - 10.0
    sine, cosine = angle.sin(), angle.cos()
    pushed = (force + 0.05 * turning.square() * sine) / 1.1
    twist = (9.8 * sine - cosine * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
    gained = pushed - 0.05 * twist * cosine / 1.1
    return torch.stack([x + 0.02 * speed, speed + 0.02 * gained, angle + 0.02 * turning, turning + 0.02 * twist], 1)


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
        CountedRollouts if cfg.counted else RolloutSource, make_envs=partial(make_envs, cfg), rows=cfg.unroll
    )
    return source_program(cfg, env, settings, learner=PPO, policy=make_policy, source=source)
