"""dm_env environments as Gymnasium ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from shoal.errors import UserError


class FromDmEnv(gymnasium.Env[Any, Any]):
    """An episode whose last step has discount 0 terminated; with any other discount it was truncated.

    dm_env has no seeds: an environment is reproducible when its factory takes `seed` and uses it.
    """

    def __init__(self, environment: dm_env.Environment, name: str) -> None:
        self._environment = environment
        self._name = name
        self.observation_space = _space(environment.observation_spec(), name)
        self.action_space = _action_space(environment.action_spec(), name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return _observation(self._environment.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        step = self._environment.step(action)
        last = bool(step.last())
        terminated = last and step.discount == 0
        return _observation(step.observation), step.reward, terminated, last and not terminated, {}

    def close(self) -> None:
        self._environment.close()


def _observation(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: _observation(part) for key, part in observation.items()}
    if isinstance(observation, list | tuple):
        return tuple(_observation(part) for part in observation)
    return observation


def _space(spec: Any, name: str) -> spaces.Space[Any]:
    if isinstance(spec, Mapping):
        return spaces.Dict({str(key): _space(part, name) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return spaces.Tuple(_space(part, name) for part in spec)
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(spec.num_values)
    if isinstance(spec, specs.Array) and spec.dtype.kind in "fiub":
        low, high = _bounds(spec)
        return spaces.Box(low, high, dtype=spec.dtype.type)
    raise UserError(f"{name}: the dm_env spec {spec} is not supported; use arrays of numbers.")


def _action_space(spec: Any, name: str) -> spaces.Space[Any]:
    """Bounded whole numbers are choices, which policies act in as Discrete and MultiDiscrete."""
    if isinstance(spec, specs.BoundedArray) and spec.dtype.kind in "iu" and len(spec.shape) <= 1:
        low, high = (bound.astype(np.int64) for bound in _bounds(spec))
        if not spec.shape:
            return spaces.Discrete(int(high - low) + 1, start=int(low))
        return spaces.MultiDiscrete(high - low + 1, start=low)
    return _space(spec, name)


def _bounds(spec: specs.Array) -> tuple[Any, Any]:
    if isinstance(spec, specs.BoundedArray):
        low, high = (np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in (spec.minimum, spec.maximum))
        return low, high
    if spec.dtype.kind == "f":
        limits: tuple[Any, Any] = (-np.inf, np.inf)
    elif spec.dtype.kind == "b":
        limits = (False, True)
    else:
        limits = (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
    return np.full(spec.shape, limits[0], spec.dtype), np.full(spec.shape, limits[1], spec.dtype)
