"""EnvPool's environments (C++, a vector each) behind the same interface: `--env envpool:HalfCheetah-v5`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from shoal.envs.options import unknown_option
from shoal.errors import UserError, did_you_mean

MODULE = "envpool"
_OURS = {"num_envs", "batch_size", "seed", "env_seed", "gym_reset_return_info", "base_path"}  # not the user's to choose


def factory(task: str) -> Callable[..., VectorEnv[Any, Any, Any]]:
    """What makes vectors of an EnvPool task."""
    return functools.partial(_make, task)


def _make(task: str, *, num_envs: int, seed: int, num_threads: int = 1, **options: Any) -> VectorEnv[Any, Any, Any]:
    import envpool

    name = f"{MODULE}:{task}"
    known = envpool.list_all_envs()
    if task not in known:
        raise UserError(f"EnvPool has no environment {task}.{did_you_mean(task, known)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Gymnasium's, about the precision of EnvPool's bounds
        settings = envpool.make_spec(task).config._asdict()
    for key in options:
        if key not in settings or key in _OURS:
            raise UserError(unknown_option(name, key, settings.keys() - _OURS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        made = envpool.make_gymnasium(task, num_envs=num_envs, seed=seed, num_threads=num_threads, **options)
        return _Pool(made, task)


class _Pool(VectorWrapper[Any, Any, Any, Any, Any]):
    """With the task's limit and threshold where others look for them. Its seeds were given when it was made."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], task: str) -> None:
        super().__init__(vector)
        self.single_observation_space, self.single_action_space = (
            vector.single_observation_space,  # made anew, with warnings, each time that EnvPool is asked
            vector.single_action_space,
        )
        settings = vector.spec.config._asdict()  # type: ignore[union-attr]
        limits = {name: settings.get(name) for name in ("reward_threshold", "max_episode_steps")}
        self._spec = EnvSpec(task, **limits)

    @property
    def spec(self) -> EnvSpec:  # type: ignore[override]
        return self._spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset()
