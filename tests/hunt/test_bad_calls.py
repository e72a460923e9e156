"""The same from Python: wrong configs, wrong options, wrong functions, wrong calls of the replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import envs
from shoal.algorithms import apex_dqn, impala, sac
from shoal.errors import UserError
from shoal.replay import Prioritized, Replay, SamplesPerInsert, Table, Uniform, n_step, rollout


class NoEnvironment:
    """Can be called, and gives nothing that could be stepped."""


class ShowsNothing(gymnasium.Env[Any, Any]):
    """Its observations have the shape (0,)."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (0,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(0, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(0, np.float32), 0.0, False, False, {}


def train(algorithm: Any = impala, /, **values: Any) -> Callable[[], Any]:
    options = values.pop("options", {})
    return lambda: shoal.train(algorithm.Config(**values), quiet=True, **options)


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "field unknown": (train(actrs=3), "shoal.algorithms.impala.Config has no 'actrs'. Did you mean actors?"),
    "option unknown": (train(options={"stop_retrun": 3}), "train() has no option 'stop_retrun'"),
    "option a field": (train(options={"env": "CartPole-v1"}), "It is a field of the config: impala.Config(env=…)."),
    "a name": (
        lambda: shoal.train("ppo", env="CartPole-v1", seed=1),
        "from shoal.algorithms import ppo, then shoal.train(ppo.Config(env='CartPole-v1'), …).",
    ),
    "actors a string": (train(actors="two"), "--actors 'two' is no such value: give a whole number."),
    "actors a half": (train(actors=1.5), "--actors 1.5 is no such value: give a whole number."),
    "actors True": (train(actors=True), "--actors True is no such value: give a whole number."),
    "actors None": (train(actors=None), "--actors None is no such value: give a whole number."),
    "gamma a string": (train(gamma="0.9"), "--gamma '0.9' is no such value: give a number."),
    "gamma complex": (train(gamma=1j), "--gamma 1j is no such value: give a number."),
    "hidden a number": (train(hidden=64), "--hidden 64 is no such value: give whole numbers."),
    "hidden of strings": (train(hidden=("a",)), "--hidden ('a',) is no such value: give whole numbers."),
    "truth a string": (train(shared_torso="no"), "--shared-torso 'no' is no such value: give True or False."),
    "choice a number": (train(optimizer=3), "--optimizer 3 is not known: choose one of adam, rmsprop."),
    "preset a number": (train(preset=3), "--preset 3 is no such value: give a name."),
    "preset a table": (train(preset={}), "--preset {} is no such value: give a name."),
    "stack a string": (train(frame_stack="4"), "--frame-stack '4' is no such value: give a whole number."),
    "timeout a string": (train(env_timeout="5"), "--env-timeout '5' is no such value: give a number."),
    "timeout negative": (train(env_timeout=-1.0), "--env-timeout -1.0 is out of range: give a number from 0 to"),
    "timeout nan": (train(env_timeout=math.nan), "--env-timeout nan is not a finite number: give one."),
    "options a list": (
        train(eval_env_options=[1]),
        "--eval-env-option (1,) is no such value: give values by name or None.",
    ),
    "device a number": (train(device=0), "--device 0 is no such value: give a name."),
    "seed a string": (train(options={"seed": "1"}), "--seed '1' is no such value: give a whole number."),
    "seed negative": (train(options={"seed": -1}), "--seed -1 is out of range"),
    "seed huge": (
        train(options={"seed": 10**23}),
        "--seed 100000000000000000000000 is out of range: give a number from 0 to 4294967295.",
    ),
    "runtime unknown": (train(options={"runtime": "threads"}), "--runtime threads is not known"),
    "stop_steps a string": (train(options={"stop_steps": "1e5"}), "--stop-steps '1e5' is no such value"),
    "stop_return nan": (train(options={"stop_return": math.nan}), "--stop-return nan is not a finite number"),
    "env a number": (train(env=3), "env is 3; give a Gymnasium id, a module:factory, or a function or class"),
    "env None": (train(env=None), "env is None; give a Gymnasium id"),
    "env an environment": (
        train(env=gymnasium.make("CartPole-v1")),
        "env is an environment itself; give a Gymnasium id",
    ),
    "env of nothing": (train(env=lambda: None), "<lambda> returned None; it must return a gymnasium.Env"),
    "env a class of something else": (train(env=NoEnvironment), "NoEnvironment returned NoEnvironment"),
    "env that raises": (train(env=lambda: 1 / 0), "<lambda> could not be made: ZeroDivisionError: division by zero"),
    "env that wants more": (train(env=lambda size: None), "<lambda> cannot be called with the options {}"),
    "network a number": (train(network=3), "--network 3 is no such value: give a name or a function or class"),
    "network of nothing": (train(network=lambda o, a: None), "The network <lambda> returned NoneType"),
    "network that raises": (
        train(network=lambda o, a: 1 / 0),
        "The network <lambda> could not be made: ZeroDivisionError: division by zero",
    ),
    "network without arguments": (train(network=lambda: None), "The network <lambda> could not be made: TypeError"),
    "pattern of nothing": (train(apex_dqn, pattern=lambda cfg: None), "The pattern <lambda> returned NoneType"),
    "pattern that raises": (
        train(apex_dqn, pattern=lambda cfg: 1 / 0),
        "The pattern <lambda> could not be made: ZeroDivisionError",
    ),
    "pattern of sequences": (
        train(apex_dqn, pattern=lambda cfg: rollout(4)),
        "--pattern <lambda> makes sequences, and the learner reads transitions",
    ),
    "actions that do not fit": (
        train(sac, env="CartPole-v1"),
        "The action space must be a Box of floats, not Discrete(2)",
    ),
    "evaluate a number": (lambda: shoal.evaluate(5), "shoal.evaluate() was given 5: give a run's folder"),  # type: ignore[arg-type]
    "load nothing": (lambda: shoal.load(None), "shoal.load() was given None: give a run's folder"),  # type: ignore[arg-type]
    "load bytes": (lambda: shoal.load(b"runs/x"), "shoal.load() was given b'runs/x'"),  # type: ignore[arg-type]
    "resume a number": (lambda: shoal.resume(5), "shoal.resume() was given 5: give a run's folder"),  # type: ignore[arg-type]
    "export a number": (lambda: shoal.export(5), "shoal.export() was given 5: give a run's folder"),  # type: ignore[arg-type]
    "env that shows nothing": (
        train(env=ShowsNothing),
        "ShowsNothing: its 'observation', Box([], [], (0,), float32), holds no number: there is nothing to see.",
    ),
    "evaluate no episodes": (lambda: shoal.evaluate("run", episodes=0), "--episodes 0 is out of range"),
    "evaluate many episodes": (lambda: shoal.evaluate("run", episodes=10**12), "give a number from 1 to 1000000"),
    "evaluate in words": (lambda: shoal.evaluate("run", episodes="many"), "--episodes 'many' is no such value"),
    "evaluate seed negative": (lambda: shoal.evaluate("run", seed=-1), "--seed -1 is out of range"),
    "doctor timeout in words": (
        lambda: shoal.doctor("CartPole-v1", timeout="x"),  # type: ignore[arg-type]
        "--timeout 'x' is no such value",
    ),
    "doctor timeout nan": (lambda: shoal.doctor("CartPole-v1", timeout=math.nan), "--timeout nan is not a finite"),
    "doctor algorithm a number": (
        lambda: shoal.doctor("CartPole-v1", algorithm=3),  # type: ignore[arg-type]
        "--algorithm 3 is no such value",
    ),
    "doctor option unknown": (
        lambda: shoal.doctor("CartPole-v1", algorithm="ppo", nope=3),
        "Config has no 'nope'",
    ),
    "a config that is none": (lambda: shoal.train(3), "train() needs an algorithm's config"),
    "a config class": (lambda: shoal.train(impala.Config), "train() needs an algorithm's config"),
    "an algorithm's name": (lambda: shoal.train("impala"), "train() needs an algorithm's config"),
    "no environments": (lambda: envs.make("CartPole-v1", 0, seed=0), "0 environments were asked for"),
    "options of a list": (
        lambda: envs.describe("CartPole-v1", options=[1]),
        "the options of an environment are values",
    ),
    "options unknown": (
        lambda: envs.describe("CartPole-v1", options={"colour": 3}),
        "has no option 'colour'. It takes",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_one_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        call()
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


ROW = {
    "observation": np.zeros((4, 2, 3), np.float32),
    "action": np.zeros((4, 2), np.int64),
    "reward": np.zeros((4, 2), np.float32),
    "terminated": np.zeros((4, 2), bool),
    "valid": np.ones((4, 2), bool),
}


def table(**changes: Any) -> Callable[[], Any]:
    return lambda: Replay([Table(**{"name": "t", "capacity": 8, **changes})])


def with_replay(call: Callable[[Replay], Any]) -> Callable[[], Any]:
    def run() -> Any:
        replay = Replay([Table("t", 8, sampler=Uniform())])
        try:
            return call(replay)
        finally:
            replay.close()

    return run


REPLAY: dict[str, Callable[[], Any]] = {
    "capacity 0": table(capacity=0),
    "capacity negative": table(capacity=-1),
    "capacity a string": table(capacity="8"),
    "no name": table(name=""),
    "no tables": lambda: Replay([]),
    "two of one name": lambda: Replay([Table("t", 8), Table("t", 8)]),
    "n 0": lambda: n_step(0, 0.9),
    "gamma nan": lambda: n_step(1, math.nan),
    "rollout 0": lambda: rollout(0),
    "exponent negative": lambda: Prioritized(-1.0),
    "exponent nan": lambda: Prioritized(math.nan),
    "ratio 0": lambda: SamplesPerInsert(0.0, 1, error_buffer=1.0),
    "table unknown": with_replay(lambda replay: replay.sample("other", 1, timeout=0.0)),
    "batch 0": with_replay(lambda replay: replay.sample("t", 0, timeout=0.0)),
    "batch negative": with_replay(lambda replay: replay.sample("t", -1, timeout=0.0)),
    "timeout nan": with_replay(lambda replay: replay.sample("t", 1, timeout=math.nan)),
    "priorities of an unknown table": with_replay(
        lambda replay: replay.update_priorities("other", np.zeros(1, np.int64), np.ones(1))
    ),
    "priorities nan": with_replay(
        lambda replay: replay.update_priorities("t", np.zeros(1, np.int64), np.array([math.nan]))
    ),
    "priorities of other length": with_replay(
        lambda replay: replay.update_priorities("t", np.zeros(2, np.int64), np.ones(1))
    ),
    "keys of floats": with_replay(lambda replay: replay.update_priorities("t", np.array([0.5]), np.ones(1))),
}


@pytest.mark.parametrize("call", REPLAY.values(), ids=REPLAY)
def test_a_wrong_call_of_the_replay_is_refused_with_a_reason(call: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)) as raised:
        call()
    assert len(str(raised.value)) > 10
