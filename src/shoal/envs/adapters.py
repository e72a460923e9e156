"""Vectors of tensors as other libraries have them, in the one form that `TensorEnvs` steps.

What each gives at an episode's end differs; where the final observation is lost, `TensorEnvs` says what is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from shoal import tree
from shoal.envs.tensor_vector import FINAL, TensorVector

_NEEDED = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")
_OF_RSL_RL = ("num_envs", "num_actions", "get_observations", "step", "episode_length_buf")
POLICY = "policy"  # the group of observations that Isaac Lab and rsl_rl have for the policy


def as_tensors(made: Any) -> TensorVector | None:
    """What a factory made, if it is a vector of tensors: one of Gymnasium's says so by having a `device`, any other
    object by having what a vector has, Isaac Lab's and rsl_rl's by what only they have."""
    base = getattr(made, "unwrapped", made)
    if all(hasattr(made, part) for part in _OF_RSL_RL):
        return RslRl(made)
    if _is_isaac(base):
        return IsaacLab(made)
    if not all(hasattr(made, part) for part in _NEEDED):
        return None
    if isinstance(made, VectorEnv) and not hasattr(made, "device"):
        return None
    if any(each.__module__.partition(".")[0] == "mani_skill" for each in type(made).__mro__):
        return ManiSkill(made)
    return made  # type: ignore[no-any-return]


def _is_isaac(base: Any) -> bool:
    space = getattr(base, "single_observation_space", None)
    groups = getattr(space, "spaces", None)
    return isinstance(groups, Mapping) and POLICY in groups and hasattr(base, "max_episode_length")


class _Adapter:
    """What adapters share: they reset within a step, and hand on copies, made outside of inference mode."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, env: Any) -> None:
        self._env = env
        base = getattr(env, "unwrapped", env)
        self.num_envs, self.device = int(base.num_envs), base.device

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()


class IsaacLab(_Adapter):
    """Isaac Lab's environments: the group "policy" of their observations. Flags are written in place by the next step;
    final observations are there where the environment computes them (`compute_final_obs`)."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        base = env.unwrapped
        self.single_observation_space = base.single_observation_space[POLICY]
        self.single_action_space = base.single_action_space

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = self._env.reset() if seed is None else self._env.reset(seed=seed)
        return _copy(observation[POLICY]), {}

    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, extras = self._env.step(actions)
        rows = [_copy(part) for part in (reward, terminated, truncated)]
        return _copy(observation[POLICY]), *rows, _final(extras.get(FINAL[0]))


class RslRl(_Adapter):
    """A VecEnv of rsl_rl: `dones` with `extras["time_outs"]`, and no final observations, unless `extras["final_obs"]`
    has them. Its actions have no bounds."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        shape = tuple(env.get_observations()[POLICY].shape[1:])
        self.single_observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, shape)
        self.single_action_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (int(env.num_actions),))

    def reset(self) -> tuple[Any, dict[str, Any]]:
        if callable(getattr(self._env, "reset", None)):
            self._env.reset()
        return _copy(self._env.get_observations()[POLICY]), {}

    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, done, extras = self._env.step(actions)
        done, reward = _copy(done).bool(), _copy(reward)
        out_of_time = extras.get("time_outs")
        truncated = done & _copy(out_of_time).bool() if out_of_time is not None else done & False
        return _copy(observation[POLICY]), reward, done & ~truncated, truncated, _final(extras.get(FINAL[0]))


class ManiSkill(_Adapter):
    """ManiSkill's vector: Gymnasium's signature with tensors, final observations in steps in which an episode ended."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = self._env.reset() if seed is None else self._env.reset(seed=seed)
        return _copy(observation), {}

    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(actions)
        rows = [_copy(part) for part in (reward, terminated, truncated)]
        return _copy(observation), *rows, _final(info.get(FINAL[1]))


def _final(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    return {FINAL[0]: _copy(given[POLICY] if isinstance(given, Mapping) and POLICY in given else given)}


def _copy(values: Any) -> Any:
    return tree.map(lambda part: part.clone(), values)
