"""Stepping plain Gymnasium environments one after another, as one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from shoal import tree
from shoal.envs import check
from shoal.envs.faults import EnvFault
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, RESET_REWARD
from shoal.envs.state import load_layers, state_of_layers
from shoal.types import Array

MakeOne = Callable[[], gymnasium.Env[Any, Any]]


class VectorEnvLike(Protocol):
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


def tell(infos: dict[str, Any], count: int, number: int, info: Mapping[str, Any]) -> None:
    """Add to a vector's info what one of its environments says of a game's lives."""
    for name in (LIFE_LOST, RESET_REWARD, ENDED_AT_RESET):
        if name in info:
            infos.setdefault(name, np.zeros(count, type(info[name])))[number] = info[name]


class InProcess:
    """`--vectorizer sync`: steps environments in a loop. Results are views of buffers that the next step overwrites:
    `Envs` copies them.

    Not Gymnasium's SyncVectorEnv because that one gathers infos nobody reads and copies everything several times.
    """

    def __init__(self, makers: Sequence[MakeOne], environment: str) -> None:
        self._environment = environment
        self.envs = [make() for make in makers]
        self.num_envs = count = len(self.envs)
        first = self.envs[0]
        check.observation_space(first.observation_space, environment)  # refuses what has no arrays
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        for number, env in enumerate(self.envs):
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise EnvFault(
                    f"{environment}: environment number {number} has other spaces than number 0: "
                    f"{env.observation_space}, {env.action_space}."
                )
        self._leaves = {
            name: np.zeros((count, *check.shape_of(space)), space.dtype)
            for name, space in tree.leaf_spaces(first.observation_space, "observation").items()
        }
        self._shapes = {name: leaf.shape[1:] for name, leaf in self._leaves.items()}
        self._only_shape = self._shapes.get("observation")  # None: the observation is nested
        self._observation = tree.unflatten(self._leaves, "observation")
        self._reward = np.zeros(count, np.float32)
        self._terminated = np.zeros(count, np.bool_)
        self._truncated = np.zeros(count, np.bool_)
        self._done = [False] * count
        self._checked = False

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = [None] * self.num_envs if seed is None else spread(seed, self.num_envs)
        observations = [
            check.reset_result(self._environment, env.reset(seed=each))[0] for env, each in zip(self.envs, seeds)
        ]
        for observation in observations:
            self._check(observation)
        self._done = [False] * self.num_envs
        return self._gather(observations), {}

    def step(self, actions: Array, /) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        done, reward, terminated, truncated = self._done, self._reward, self._terminated, self._truncated
        observations = []
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            if done[i]:
                observation, info = check.reset_result(self._environment, env.reset())
                reward[i], terminated[i], truncated[i], done[i] = 0.0, False, False, False
                if RESET_REWARD in info:
                    done[i] = info[ENDED_AT_RESET]
                    tell(infos, self.num_envs, i, info)
            else:
                outcome = env.step(actions[i])
                if not self._checked:
                    check.check_outcome(self._environment, outcome, self.single_observation_space)
                try:
                    observation, reward[i], ended, cut, info = outcome
                    terminated[i], truncated[i] = ended, cut
                except (TypeError, ValueError):  # not as it was the first time: say what is wrong with it now
                    check.check_outcome(self._environment, outcome, self.single_observation_space)
                    raise
                done[i] = bool(ended or cut)
                if ended and LIFE_LOST in info:
                    tell(infos, self.num_envs, i, info)
            observations.append(observation)
        self._checked = True
        return self._gather(observations), reward, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        return {"done": list(self._done), "envs": [state_of_layers(env) for env in self.envs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for env, states in zip(self.envs, state["envs"], strict=True):
            load_layers(env, states)
        self._done = [bool(done) for done in state["done"]]

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _check(self, observation: Any) -> None:
        check.check_observation(observation, self.single_observation_space, self._environment)

    def _gather(self, observations: list[Any]) -> Any:
        """Shapes are looked at every time, since numpy would spread a smaller observation over the row unseen."""
        shape = self._only_shape
        if shape is None:
            self._gather_nested(observations)
        else:
            buffer = self._observation
            for i, observation in enumerate(observations):
                if getattr(observation, "shape", ()) != shape:
                    self._check(observation)
                buffer[i] = observation
        return self._observation

    def _gather_nested(self, observations: list[Any]) -> None:
        for i, observation in enumerate(observations):
            flat = tree.flatten(observation, "observation")
            if flat.keys() != self._leaves.keys():
                self._check(observation)
            for name, leaf in flat.items():
                if getattr(leaf, "shape", ()) != self._shapes[name]:
                    self._check(observation)
                self._leaves[name][i] = leaf
