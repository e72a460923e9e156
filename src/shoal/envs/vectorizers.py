"""Stepping plain Gymnasium environments one after another, as one vector; and what becomes of one that is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from shoal import tree
from shoal.envs import check
from shoal.envs.faults import EnvFault, what_was_raised
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, REPLACED, RESET_REWARD
from shoal.envs.state import load_layers, state_of_layers
from shoal.errors import UserError
from shoal.types import Array, Arrays

IN_A_ROW = 3  # replacements of one environment without a step between them, before its fault is the actor's
LARGEST = float(np.finfo(np.float32).max) ** 2  # of a sum of squares, below which every number is a finite float32
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


class Losses:
    """Which environments of a vector were lost: how often in a row, and sentences of it for whoever takes them."""

    def __init__(self, environment: str) -> None:
        self.told: list[str] = []
        self._environment = environment
        self._in_a_row: dict[int, int] = {}  # of those that have not made a step since

    def add(self, number: int, why: str) -> None:
        """One is lost, and is to be replaced; `EnvFault` when that has not helped."""
        self._in_a_row[number] = times = self._in_a_row.get(number, 0) + 1
        said = f"{self._environment}: environment number {number} {why}"
        if times > IN_A_ROW:
            raise EnvFault(f"{said}, {times} times in a row.")
        self.told.append(f"{said}; it was replaced and its episode truncated")

    def stepped(self, replaced: Array | None) -> None:
        """A step is over, in which these, bool [B], were replaced."""
        if self._in_a_row:
            still = [] if replaced is None else np.flatnonzero(replaced).tolist()
            self._in_a_row = {number: self._in_a_row[number] for number in still}


def fault_of(error: BaseException, environment: str) -> str:
    """What an environment raised, or what is wrong with what it gave, in the sentence of its loss."""
    if not isinstance(error, EnvFault):
        return f"raised {what_was_raised(error)}"
    said = str(error).rstrip(".")
    raised = said.removeprefix(f"{environment} ")  # as its own process tells it
    return raised if raised != said else f"is at fault: {said.removeprefix(f'{environment}: ')}"


def not_finite(leaves: Arrays, reward: Array) -> dict[int, EnvFault]:
    """What is wrong with the rows, by their number, that hold NaN or infinity."""
    found: dict[int, EnvFault] = {}
    for name, array in {"reward": reward, **leaves}.items():
        if array.dtype.kind == "f" and not float(np.vdot(array, array)) < LARGEST:
            for number, what in check.rows_not_finite(array).items():
                found.setdefault(number, EnvFault(f"its '{name}' {what}."))
    return found


class InProcess:
    """`--vectorizer sync`: steps environments in a loop. Results are views of buffers that the next step overwrites:
    `Envs` copies them.

    Not Gymnasium's SyncVectorEnv because that one gathers infos nobody reads and copies everything several times.
    """

    def __init__(self, makers: Sequence[MakeOne], environment: str) -> None:
        self.replaces = False  # what raises, or gives what it may not, is replaced; else the fault is everybody's
        self._environment, self._makers = environment, list(makers)
        self._losses = Losses(environment)
        self.losses = self._losses.told
        self.envs = [make() for make in makers]
        self.num_envs = count = len(self.envs)
        self._seed, self._lives = 0, [0] * count  # what the seeds of those that take the place of others are made of
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
        self.told: set[str] = set()  # names in the infos of the first resets and steps

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = [None] * self.num_envs if seed is None else spread(seed, self.num_envs)
        self._seed = self._seed if seed is None else seed
        observations, infos = [], dict[str, Any]()
        for number, (env, each) in enumerate(zip(self.envs, seeds)):
            try:
                observation, info = check.reset_result(self._environment, env.reset(seed=each))
                self._check(observation)
                self.told.update(info)
            except BaseException as error:
                observation = self._replace(number, error, infos)
            observations.append(observation)
        self._done = [False] * self.num_envs
        gathered = self._gather(observations, infos)
        self._reward[:] = 0.0
        if self.replaces:
            self._replace_what_is_not_finite(infos)
        return gathered, {}

    def step(self, actions: Array, /) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        done, reward, terminated, truncated = self._done, self._reward, self._terminated, self._truncated
        observations = []
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            try:
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
                        self.told.update(outcome[4] if isinstance(outcome[4], Mapping) else ())
                    try:
                        observation, reward[i], ended, cut, info = outcome
                        terminated[i], truncated[i] = ended, cut
                    except (TypeError, ValueError):  # not as it was the first time: say what is wrong with it now
                        check.check_outcome(self._environment, outcome, self.single_observation_space)
                        raise
                    done[i] = bool(ended or cut)
                    if ended and LIFE_LOST in info:
                        tell(infos, self.num_envs, i, info)
            except BaseException as error:
                observation = self._replace(i, error, infos)
            observations.append(observation)
        self._checked = True
        gathered = self._gather(observations, infos)
        if self.replaces:
            self._replace_what_is_not_finite(infos)
            self._losses.stepped(infos.get(REPLACED))
        return gathered, reward, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        state = {"done": list(self._done), "envs": [state_of_layers(env) for env in self.envs]}
        return state | {"seed": self._seed, "lives": list(self._lives)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for env, states in zip(self.envs, state["envs"], strict=True):
            load_layers(env, states)
        self._done = [bool(done) for done in state["done"]]
        self._seed, self._lives = state.get("seed", self._seed), list(state.get("lives", self._lives))

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _check(self, observation: Any) -> None:
        check.check_observation(observation, self.single_observation_space, self._environment)

    def _replace(self, number: int, error: BaseException, infos: dict[str, Any]) -> Any:
        """The first observation of a new environment in the place of one that is lost; where none is replaced, what was
        raised is raised on. Seeds are worked out, so that a run can be repeated, and never those of a lost episode."""
        while True:
            if not self.replaces or isinstance(error, UserError | KeyboardInterrupt):
                raise error
            self._losses.add(number, fault_of(error, self._environment))
            self._lives[number] += 1
            try:
                with contextlib.suppress(Exception):
                    self.envs[number].close()
                env = self.envs[number] = self._makers[number]()
                seed = np.random.SeedSequence((self._seed, number, self._lives[number])).generate_state(1)
                observation, _ = check.reset_result(self._environment, env.reset(seed=int(seed[0]) & 0x7FFFFFFF))
                self._check(observation)
            except BaseException as again:
                error = again
                continue
            self._done[number], self._reward[number] = False, 0.0
            infos.setdefault(REPLACED, np.zeros(self.num_envs, np.bool_))[number] = True
            return observation

    def _replace_what_is_not_finite(self, infos: dict[str, Any]) -> None:
        while faults := not_finite(self._leaves, self._reward):
            for number, fault in faults.items():
                self._put(number, self._replace(number, fault, infos))

    def _gather(self, observations: list[Any], infos: dict[str, Any]) -> Any:
        """Shapes are looked at every time, since numpy would spread a smaller observation over the row unseen."""
        shape = self._only_shape
        for number, observation in enumerate(observations):
            try:
                if shape is None or getattr(observation, "shape", ()) != shape:
                    self._put(number, observation)
                else:
                    self._observation[number] = observation
            except BaseException as error:
                self._put(number, self._replace(number, error, infos))
        return self._observation

    def _put(self, number: int, observation: Any) -> None:
        """One row, where it is not plainly as its space says."""
        flat = tree.flatten(observation, "observation")
        if flat.keys() != self._leaves.keys():
            self._check(observation)
        for name, leaf in flat.items():
            if getattr(leaf, "shape", ()) != self._shapes[name]:
                self._check(observation)
            self._leaves[name][number] = leaf
