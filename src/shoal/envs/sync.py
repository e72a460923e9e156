"""Stepping plain Gymnasium environments one after another, or each in a process of its own, as one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from shoal import tree
from shoal.envs import check

Array = npt.NDArray[Any]
MakeOne = Callable[[], gymnasium.Env[Any, Any]]


class Vector(Protocol):
    """What `Envs` needs of a vector of environments; Gymnasium's VectorEnv has it. Autoreset is NEXT_STEP."""

    num_envs: int
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...
    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...
    def close(self) -> None: ...


def spread(seed: int, count: int) -> list[int]:
    """Seeds for `count` environments that have nothing in common with those of another `seed`."""
    return [int(state) & 0x7FFFFFFF for state in np.random.SeedSequence(seed).generate_state(count)]


class SyncVector:
    """Steps environments in a loop. Results are views of buffers that the next step overwrites: `Envs` copies them.

    Not Gymnasium's SyncVectorEnv because that one gathers infos nobody reads and copies everything several times.
    """

    def __init__(self, makers: Sequence[MakeOne], environment: str) -> None:
        self._environment = environment
        self._envs = [make() for make in makers]
        self.num_envs = count = len(self._envs)
        first = self._envs[0]
        check.observation_space(first.observation_space, environment)  # refuses what has no arrays
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        for number, env in enumerate(self._envs):
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise check.EnvFault(
                    f"{environment}: environment number {number} has other spaces than number 0: "
                    f"{env.observation_space}, {env.action_space}."
                )
        self._leaves = {
            name: np.zeros((count, *check.shape_of(space)), space.dtype)
            for name, space in check.leaf_spaces(first.observation_space).items()
        }
        self._nested = "observation" not in self._leaves
        self._observation = tree.unflatten(self._leaves, "observation")
        self._reward = np.zeros(count, np.float32)
        self._terminated = np.zeros(count, np.bool_)
        self._truncated = np.zeros(count, np.bool_)
        self._done = [False] * count
        self._checked = False

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = [None] * self.num_envs if seed is None else spread(seed, self.num_envs)
        observations = [env.reset(seed=each)[0] for env, each in zip(self._envs, seeds)]
        for observation in observations:
            check.check_observation(observation, self.single_observation_space, self._environment)
        self._done = [False] * self.num_envs
        return self._gather(observations), {}

    def step(self, actions: Array, /) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        done, reward, terminated, truncated = self._done, self._reward, self._terminated, self._truncated
        observations = []
        for i, env in enumerate(self._envs):
            if done[i]:
                observation, _ = env.reset()
                reward[i], terminated[i], truncated[i], done[i] = 0.0, False, False, False
            else:
                observation, gained, ended, cut, _ = env.step(actions[i])
                if not self._checked:
                    self._check(observation, gained, ended, cut)
                reward[i], terminated[i], truncated[i] = gained, ended, cut
                done[i] = bool(ended or cut)
            observations.append(observation)
        self._checked = True
        return self._gather(observations), reward, terminated, truncated, {}

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _check(self, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        check.check_observation(observation, self.single_observation_space, self._environment)
        check.check_rows(self._environment, 1, reward=[reward], terminated=[terminated], truncated=[truncated])

    def _gather(self, observations: list[Any]) -> Any:
        if self._nested:
            for i, observation in enumerate(observations):
                for name, leaf in tree.flatten(observation, "observation").items():
                    self._leaves[name][i] = leaf
        else:
            buffer = self._observation
            for i, observation in enumerate(observations):
                buffer[i] = observation
        return self._observation


class AsyncVector:
    """One sub-process per environment; worth it when a single step takes longer than about a millisecond."""

    def __init__(self, makers: Sequence[MakeOne]) -> None:
        self._vector = AsyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.num_envs = len(makers)
        self.single_observation_space = self._vector.single_observation_space
        self.single_action_space = self._vector.single_action_space

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        seeds: list[int | None] = [None] * self.num_envs if seed is None else [*spread(seed, self.num_envs)]
        return self._vector.reset(seed=seeds)

    def step(self, actions: Array, /) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        return self._vector.step(actions)

    def close(self) -> None:
        self._vector.close()
