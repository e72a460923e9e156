"""Data out of a trained policy: whole episodes, greedy, exploring or at random, as a dataset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from shoal import envs
from shoal.acting import PerEnvironment, Policy, Recorder
from shoal.acting.policy import Acted, State
from shoal.data import BadData, DatasetWriter, Origin, minari, open_dataset
from shoal.data.cutting import Cutter
from shoal.data.writer import LateWriter, check_new, check_writable
from shoal.envs import Environment
from shoal.envs.faults import told_as_a_fault
from shoal.envs.making import makes_vectors
from shoal.envs.seeding import number_episodes, seed_of
from shoal.errors import UserError, name_of
from shoal.loops.evaluator import AT_ONCE
from shoal.playing.evaluation import checked_spec, environment_config
from shoal.playing.policy import TrainedPolicy, load
from shoal.playing.watching import Onlooker
from shoal.runs.records import recorded_value
from shoal.step import Step
from shoal.types import Array, Arrays, Columns

Who = Literal["greedy", "exploring", "random"]
ROWS = 64  # that are looked at together


@dataclass(frozen=True)
class Collection:
    """What was written."""

    path: str
    algorithm: str
    env: str
    policy: Who
    seed: int
    episodes: int
    steps: int
    mean_return: float
    spread: float


class UniformPolicy:
    """Every action alike, and the chance of each."""

    def __init__(self, space: spaces.Space[Any], seed: int) -> None:
        self._space, self._random = space, np.random.default_rng(seed)
        match space:
            case spaces.Discrete():
                self._log_prob = -np.log(float(space.n))
            case spaces.MultiDiscrete():
                self._log_prob = -float(np.log(space.nvec).sum())
            case spaces.Box() if np.isfinite(space.low).all() and np.isfinite(space.high).all():
                self._log_prob = -float(np.log(space.high.astype(np.float64) - space.low).sum())
            case _:
                raise UserError(f"--policy random cannot draw from {space}, which has no end: take another policy.")

    def initial_state(self, count: int) -> State:
        return {}

    def act(self, observation: Any, state: State, first: Array) -> Acted:
        count, space, random = len(first), self._space, self._random
        action: Array
        match space:
            case spaces.Box():
                action = random.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)
            case spaces.MultiDiscrete():
                action = random.integers(0, space.nvec, (count, *space.shape))
            case _:
                assert isinstance(space, spaces.Discrete)
                action = random.integers(0, int(space.n), count)
        return action, {}, {"log_prob": np.full(count, self._log_prob, np.float32)}

    def load(self, weights: Arrays) -> None:
        """It learns nothing."""


def collect(
    source: TrainedPolicy | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    episodes: int = 100,
    policy: Who = "greedy",
    env: Environment | None = None,
    env_options: dict[str, Any] | None = None,
    seed: int | None = None,
    trust: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Collection:
    """Play `episodes` whole episodes with the policy of a run (RUN, RUN:best or a checkpoint's folder) and write them
    as a dataset: a new folder, or `minari:ID`. Episode i is played with the seed `seed` + i, where the environment can
    be told. What is interrupted leaves whole episodes, for Minari in a folder that is called as the id."""
    folder = Path(output)
    if minari.is_name(str(output)):
        minari.check_new(str(output))
        folder = Path(f"{str(output).removeprefix(minari.PREFIX).replace('/', '-')}.collected")
    check_new(folder)
    check_writable(folder)
    seed = int.from_bytes(os.urandom(3), "little") if seed is None else seed
    trained = source if isinstance(source, TrainedPolicy) else load(source, seed=seed, trust=trust)
    cfg = environment_config(trained, env, env_options, trust)
    spec = checked_spec(trained, cfg).for_evaluation()
    acts = _policy(trained, policy, spec, seed)
    at_once = min(episodes, AT_ONCE)
    text = f"{episodes} episodes of {trained.algorithm}, {policy}, of {trained.run}"
    made = envs.make(spec, at_once, seed=seed, vectorizer="auto" if makes_vectors(spec.env) else "sync")
    new = partial(
        DatasetWriter,
        folder,
        made.observation_space,
        made.action_space,
        native_action_space=spec.native_action_space,
        env=name_of(cfg.env),
        env_options=recorded_value(spec.options),
        origin=Origin(text),
    )
    writer = LateWriter(new)
    try:
        _play(made, acts, episodes, seed, writer, Onlooker(tell, made.count))
    except (envs.EnvFault, BadData) as fault:
        raise UserError(f"{fault} What was collected before it, {writer.kept()}, stays.") from fault
    finally:
        made.close()
        writer.close()
    if minari.is_name(str(output)):
        minari.write(open_dataset(folder), str(output))
        shutil.rmtree(folder)
    returns = np.asarray(writer.returns)
    numbers = len(returns), writer.steps, float(returns.mean()), float(returns.std())
    return Collection(str(output), trained.algorithm, name_of(cfg.env), policy, seed, *numbers)


def _policy(trained: TrainedPolicy, who: Who, spec: envs.EnvSpec, seed: int) -> Policy:
    if who == "random":
        return UniformPolicy(spec.action_space, seed)
    return trained.greedy if who == "greedy" else trained.exploring


def _play(made: envs.Envs, policy: Policy, episodes: int, seed: int, writer: LateWriter, onlooker: Onlooker) -> None:
    """Every environment plays its share, one episode after another, so that short ones do not count more often."""
    count = made.count
    seeded = number_episodes(made, seed)
    shares = [len(range(number, episodes, count)) for number in range(count)]
    done = [0] * count
    space = made.action_space
    cutter = Cutter(space.low, space.high) if isinstance(space, spaces.Box) else Cutter()

    def take(block: Columns) -> None:
        for environment, episode in cutter.feed(block):
            number, done[environment] = done[environment], done[environment] + 1
            if number < shares[environment]:
                known = seed_of(seed, environment, number, count) if seeded else None
                writer.append(episode.with_seed(known))

    recorder = Recorder(policy, count, ROWS, take, stacks=made.stacks)
    if isinstance(policy, PerEnvironment):
        policy.set_environments(np.arange(count), count)
    observation = made.reset()
    while any(there < share for there, share in zip(done, shares)):
        if onlooker.give_up():
            break
        actions = recorder.act(observation)
        with told_as_a_fault(made.environment, "stepped"):
            step: Step = made.step(actions)
        onlooker.see(step)
        recorder.result(step)
        observation = step.observation
