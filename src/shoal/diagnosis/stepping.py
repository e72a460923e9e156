"""An environment as it is, one or a vector of a few, stepped with random actions: nothing is converted or masked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from shoal import tree
from shoal.envs import EnvFault, EnvSpec, check, names
from shoal.envs.faults import told_as_a_fault
from shoal.envs.making import vectorize
from shoal.envs.vector import resets_within_a_step
from shoal.envs.vectorizers import InProcess, VectorEnvLike
from shoal.errors import UserError
from shoal.types import Array, Arrays

FEW = 4  # environments of a vector that cannot be taken apart


class Row(NamedTuple):
    """What one step gave; of a single environment with a first axis of 1."""

    leaves: Arrays  # of the observation, in the dtypes that came
    reward: Array  # [B]
    terminated: Array  # [B]
    truncated: Array  # [B]
    first: Array  # [B], True where the row begins an episode and the action was not looked at


class Raw:
    """Rows of an environment that was made for them."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.name, self._seed = spec.name, seed
        self._vector = raw_vector(spec, seed)
        self.single = isinstance(self._vector, InProcess)
        self.same_step = resets_within_a_step(self._vector)
        self.count = self._vector.num_envs
        self.space = self._vector.single_observation_space
        self._actions = self._vector.single_action_space
        self._actions.seed(seed)

    @property
    def autoreset(self) -> str:
        return "SAME_STEP" if self.same_step else "NEXT_STEP"

    def rows(self, steps: int, seconds: float) -> Iterator[Row]:
        """The first observation, and what steps gave; what the environment gets wrong is an `EnvFault`."""
        deadline = time.monotonic() + seconds
        play = self._one() if self.single else self._several()
        for number, row in enumerate(play):
            yield row
            if number >= steps or time.monotonic() > deadline:
                return

    def seed_actions(self, seed: int) -> None:
        """Those of one seed are the same, whatever the environment's is."""
        self._actions.seed(seed)

    def close(self) -> None:
        with told_as_a_fault(self.name, "closed"):
            self._vector.close()

    def _one(self) -> Iterator[Row]:
        env: gymnasium.Env[Any, Any] = self._vector.envs[0]  # type: ignore[attr-defined]
        none, one = np.zeros(1, np.bool_), np.ones(1, np.bool_)
        seed: int | None = self._seed
        while True:
            with told_as_a_fault(self.name, "reset"):
                observation, _ = check.reset_result(
                    self.name, env.reset(seed=seed) if seed is not None else env.reset()
                )
            check.check_observation(observation, self.space, self.name)
            yield Row(self._leaves(observation, single=True), np.zeros(1), none, none, one)
            seed, done = None, False
            while not done:
                with told_as_a_fault(self.name, "stepped"):
                    outcome = env.step(self._actions.sample())
                check.check_outcome(self.name, outcome, self.space)
                observation, reward, terminated, truncated, _ = outcome
                row = [np.asarray(value)[None] for value in (reward, terminated, truncated)]
                yield Row(self._leaves(observation, single=True), row[0].astype(np.float64), row[1], row[2], none)
                done = bool(terminated or truncated)

    def _several(self) -> Iterator[Row]:
        vector, count = self._vector, self.count
        none = np.zeros(count, np.bool_)
        with told_as_a_fault(self.name, "reset"):
            observation, _ = vector.reset(seed=self._seed)
        check.check_observation(observation, self.space, self.name, count)
        yield Row(self._leaves(observation), np.zeros(count), none, none, ~none)
        done = none
        while True:
            actions = np.stack([np.asarray(self._actions.sample()) for _ in range(count)])
            with told_as_a_fault(self.name, "stepped"):
                observation, reward, terminated, truncated, _ = vector.step(actions)
            check.check_observation(observation, self.space, self.name, count)
            check.check_rows(self.name, count, reward=reward, terminated=terminated, truncated=truncated)
            ended = np.asarray(terminated) | np.asarray(truncated)
            if self.same_step:
                yield Row(
                    self._leaves(observation), np.asarray(reward), np.array(terminated), np.array(truncated), none
                )
                continue
            self._check_autoreset(done, np.asarray(reward), ended)
            reward = np.where(done, 0.0, reward)
            yield Row(self._leaves(observation), reward, np.array(terminated), np.array(truncated), done)
            done = ended.copy()

    def _check_autoreset(self, resets: Array, reward: Array, ended: Array) -> None:
        wrong = np.flatnonzero(resets & ((reward != 0) | ended))
        if len(wrong):
            what = f"gave reward {reward[wrong[0]]:g}" if reward[wrong[0]] else "ended an episode again"
            raise EnvFault(
                f"{self.name}: its metadata say NEXT_STEP autoreset, but the step after the end of an episode {what}; "
                "that step must ignore the action, return the next episode's first observation and reward 0."
            )

    def _leaves(self, observation: Any, single: bool = False) -> Arrays:
        found = {name: np.array(leaf) for name, leaf in tree.flatten(observation, "observation").items()}
        return {name: leaf[None] for name, leaf in found.items()} if single else found


def raw_vector(spec: EnvSpec, seed: int) -> VectorEnvLike:
    """One by one where that is possible: what a single environment returns is what the user wrote."""
    options: dict[str, Any] = {"seed": seed, "options": spec.options}
    if names.is_users_code(spec.env):
        try:
            return vectorize(spec.env, 1, vectorizer="sync", **options)
        except UserError:  # it makes vectors
            return vectorize(spec.env, FEW, vectorizer="auto", **options)
    names.know(spec.registered)
    registered = names.resolve(spec.env)
    alone = getattr(registered, "entry_point", None) is not None
    return vectorize(spec.env, 1 if alone else FEW, vectorizer="sync" if alone else "auto", **options)


def in_this_process(spec: EnvSpec) -> EnvSpec:
    """As a run steps it, but for processes of its own: for measurements of one core."""
    return replace(spec, vectorizer="sync", timeout=0.0) if spec.vectorizer == "async" else spec
