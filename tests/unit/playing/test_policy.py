"""A policy in the user's own program: acts as in training, keeps episodes apart, needs no machinery."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.saved_runs import saved_run
from tests.unit.playing import export_cases

import shoal
from shoal import envs
from shoal.cli.main import main
from shoal.envs import describing, trial
from shoal.errors import UserError
from shoal.functional.arrays import zero_where
from shoal.playing import Evaluation, TrainedPolicy
from shoal.runs import registry

ENVS = dict.fromkeys(("apex_dpg", "cql", "d4pg", "iql", "sac", "td3", "td3_bc"), "Pendulum-v1")
ALGORITHMS = [(name, {}) for name in registry.names()] + [
    ("ppo", {"lstm": 8}),
    ("ppo", {"normalize_observations": True}),
]


class Nested(gymnasium.Env[Any, Any]):
    """Dict observations with bytes, and actions that are counted from 5."""

    observation_space = spaces.Dict(
        {"picture": spaces.Box(0, 255, (3, 3), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,), np.float64)}
    )
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert action in (5, 6, 7)
        return self.observation_space.sample(), 1.0, False, bool(self.np_random.random() < 0.2), {}


def observations(policy: TrainedPolicy, count: int) -> list[Any]:
    policy.observation_space.seed(3)
    return [policy.observation_space.sample() for _ in range(count)]


@pytest.mark.parametrize(("algorithm", "chosen"), ALGORITHMS)
def test_it_acts_as_the_evaluators_policy_one_by_one_and_in_batches(
    algorithm: str, chosen: dict[str, Any], tmp_path: Path
) -> None:
    run = saved_run(tmp_path / "run", algorithm, env=ENVS.get(algorithm, "CartPole-v1"), **chosen)
    policy = shoal.load(run)
    page, spec = registry.load(algorithm), envs.describe(policy.config.env)
    judge = page.make_policy(policy.config, spec, 0, greedy=True)
    judge.load(dict(np.load(run / "weights.npz")))
    state, first = judge.initial_state(1), np.ones(1, np.bool_)
    alone, batched = policy.copy(), policy.copy()
    for seen in observations(policy, 6):
        if "last_reward" in state:
            state = {**state, "last_reward": np.zeros(1, np.float32)}
        expected, state, _ = judge.act(seen[np.newaxis], zero_where(first, state), first)
        first = np.zeros(1, np.bool_)
        one, two = alone.act(seen, reward=0.0), batched.act(np.stack([seen, seen]), reward=[0.0, 0.0])
        np.testing.assert_allclose(one, np.clip(expected[0], -2.0, 2.0), atol=1e-6)
        np.testing.assert_allclose(two, [one, one], atol=1e-5)
        assert policy.action_space.contains(one)


def test_a_single_discrete_action_is_a_plain_number(tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run"))
    assert type(policy.act([0.1, 0.2, 0.3, 0.4])) is int
    assert policy.act(np.zeros((3, 4))).shape == (3,)  # type: ignore[union-attr]


class Choosing(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole that shows one of three numbers from 2 on, and a choice out of (2, 3); two choices are its action."""

    def __init__(self, choices: int = 2) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = spaces.Dict(one=spaces.Discrete(3, start=2), two=spaces.MultiDiscrete([2, 3]))
        self.action_space = spaces.MultiDiscrete([choices, choices])

    def observation(self, observation: Any) -> Any:
        return {"one": 2 + int(observation[0] > 0), "two": np.zeros(2, np.int64)}

    def step(self, action: Any) -> Any:
        return super().step(int(action[0]) % 2)


def test_choices_are_those_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "describe_apart", describing.describe_here)
    run = saved_run(tmp_path / "run", env=Choosing)
    policy = shoal.load(run)
    for one, two in ((2, [0, 0]), (4, [1, 2])):
        assert policy.act({"one": one, "two": two}).shape == (2,)  # type: ignore[union-attr]
    for one, two, name in ((1, [0, 0], "one"), (5, [0, 0], "one"), (2, [0, 3], "two"), (2, [-1, 0], "two")):
        with pytest.raises(UserError, match=f"observation/{name} holds .*: the policy was trained on values from"):
            policy.act({"one": one, "two": two})
    with pytest.raises(UserError, match=r"has the actions MultiDiscrete\(\[3 3\]\), and the policy"):
        shoal.evaluate(run, env=partial(Choosing, 3), episodes=1)


def test_a_batch_has_one_observation_or_more(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has the shape \[0, 4\]: give \[4\] for one .* for a batch of one or more"):
        shoal.load(saved_run(tmp_path / "run")).act(np.zeros((0, 4)))


def test_nested_observations_and_actions_counted_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "describe_apart", describing.describe_here)  # a process would take seconds
    run = saved_run(tmp_path / "run", env=Nested)
    record = json.loads((run / "config.json").read_text())
    assert record["spaces"]["native_action"]["start"] == 5
    policy = shoal.load(run)
    (seen,) = observations(policy, 1)
    assert policy.act(seen) in (5, 6, 7)
    assert shoal.evaluate(policy, episodes=3, seed=1).episodes == 3
    with pytest.raises(UserError, match="parts observation/picture, and the policy was trained on"):
        policy.act({"picture": seen["picture"]})
    with pytest.raises(UserError, match="not of one size: observation/picture has 2, observation/speed is one"):
        policy.act({**seen, "picture": np.stack([seen["picture"]] * 2)})
    with pytest.raises(UserError, match="observation/picture has values that uint8"):
        policy.act({**seen, "picture": np.full((3, 3), 256)})
    with pytest.raises(UserError, match="observation/picture is float64: the policy was trained on uint8"):
        policy.act({**seen, "picture": np.zeros((3, 3))})


def remembered(policy: Any) -> dict[str, Any]:
    state: dict[str, Any] = policy._player.state_dict()["state"]
    return state


@pytest.mark.parametrize("algorithm", ["ppo", "r2d2"])
def test_an_episode_is_remembered_until_reset_and_rows_are_reset_apart(algorithm: str, tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run", algorithm, env="CartPole-v1", lstm=8))
    rows = np.stack(observations(policy, 8)).astype(np.float32)

    def state_after(*resets: Any) -> dict[str, Any]:
        """The recurrent state of a batch of two after two rows, reset as told before the second."""
        policy.reset()
        policy.act(rows[:2])
        for where in resets:
            policy.reset(where)
        policy.act(rows[2:4], reward=[0.0, 0.0])
        return remembered(policy)

    kept, half = state_after(), state_after([True, False])
    policy.reset()
    policy.act(rows[2:4])
    fresh = remembered(policy)
    name = next(name for name in kept if name not in ("last_action", "last_reward"))
    assert not np.allclose(kept[name][0], fresh[name][0])
    np.testing.assert_allclose(half[name][0], fresh[name][0], atol=1e-6)
    np.testing.assert_allclose(half[name][1], kept[name][1], atol=1e-6)
    np.testing.assert_allclose(state_after([True, False], [False, True])[name], fresh[name], atol=1e-6)
    assert policy.copy()._player is None, "a copy has an episode of its own"
    with pytest.raises(UserError, match="The policy remembers 2 episodes and was given 3 observations"):
        policy.act(rows[:3], reward=[0.0] * 3)
    with pytest.raises(UserError, match=r"mask \[3\] for a batch of 2"):
        policy.reset([True] * 3)


def test_a_policy_that_looks_at_rewards_asks_for_them(tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run", "r2d2"))
    (seen,) = observations(policy, 1)
    policy.act(seen)
    with pytest.raises(UserError, match="looks at what its last action gave"):
        policy.act(seen)
    with pytest.raises(UserError, match="2 rewards for 1 observations"):
        policy.act(seen, reward=[1.0, 2.0])
    with pytest.raises(UserError, match="was given the reward 'x': give a number for each observation"):
        policy.act(seen, reward="x")
    with pytest.raises(UserError, match="a reward that is not finite"):
        policy.act(seen, reward=np.nan)
    policy.reset()
    policy.act(seen)


@pytest.mark.parametrize(
    ("algorithm", "env"), [("impala", "CartPole-v1"), ("apex_dqn", "CartPole-v1"), ("sac", "Pendulum-v1")]
)
def test_exploring_differs_greedy_does_not_and_a_seed_repeats_it(algorithm: str, env: str, tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", algorithm, env=env)
    batch = np.repeat(shoal.load(run).observation_space.sample()[np.newaxis], 400, axis=0)

    def play(seed: int, explore: bool) -> np.ndarray[Any, Any]:
        return np.asarray(shoal.load(run, seed=seed).act(batch, explore=explore))

    assert (play(1, False) == play(2, False)).all()
    assert len(np.unique(play(1, True))) > 1
    assert (play(1, True) == play(1, True)).all()
    assert (play(1, True) != play(2, True)).any()


def test_the_uniform_actions_with_which_a_run_begins_are_over(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "td3", env="Pendulum-v1", random_steps=10_000, noise=1e-6)
    policy = shoal.load(run, seed=0)
    seen = policy.observation_space.sample()
    np.testing.assert_allclose(policy.act(seen, explore=True), policy.act(seen), atol=1e-3)


def test_neither_the_environment_nor_the_machinery_of_training_is_needed(tmp_path: Path) -> None:
    """In a new process: the environment's module does not exist, and nothing is started."""
    run = saved_run(tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    record["config"]["env"] = "gone:make"
    (run / "config.json").write_text(json.dumps(record))
    program = f"""
import os, sys, threading, shoal
policy = shoal.load({str(run)!r})
policy.act([0.0, 0.0, 0.0, 0.0])
assert threading.active_count() == 1, threading.enumerate()
assert not [name for name in sys.modules if name.split(".")[0] == "ray" or name.startswith("shoal.runtime")]
children = open(f"/proc/self/task/{{os.getpid()}}/children").read()
assert children == "", children
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with pytest.raises(UserError, match="there is no module 'gone'"):
        shoal.evaluate(run, episodes=1, trust=True)
    assert shoal.evaluate(run, episodes=2, env="CartPole-v1").env == "CartPole-v1"


class Stretched(Nested):
    """Takes an option; the run was trained with it."""

    def __init__(self, stretch: float = 1.0) -> None:
        self.stretch = stretch


class Plain(Nested):
    """Takes none."""


class Bent(Stretched):
    made: tuple[float, float] = (0.0, 0.0)

    def __init__(self, stretch: float = 1.0, bend: float = 0.0) -> None:
        super().__init__(stretch)
        Bent.made = (stretch, bend)


def test_options_that_are_given_are_added_to_those_of_the_run(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", env=Bent, env_options={"stretch": 2.0})
    shoal.evaluate(run, episodes=1, env_options={"bend": 3.0})
    assert Bent.made == (2.0, 3.0)
    shoal.evaluate(run, episodes=1, env_options={"stretch": 4.0})
    assert Bent.made == (4.0, 0.0)


def test_another_environment_gets_none_of_the_runs_options(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", env=Stretched, env_options={"stretch": 2.0})
    assert shoal.evaluate(run, episodes=1, env=Plain).env == "Plain"
    assert shoal.evaluate(run, episodes=1, env=Plain, env_options={}).env == "Plain"
    made: list[float] = []

    def watched(stretch: float = 1.0) -> Nested:
        made.append(stretch)
        return Stretched(stretch)

    lost = saved_run(tmp_path / "lost", env=watched, env_options={"stretch": 2.0})
    made.clear()
    shoal.evaluate(lost, episodes=1, env=watched)
    assert set(made) == {2.0}, "the run's own, given again, has its options"


def test_a_network_that_is_lost_is_asked_for_in_the_words_of_whoever_asks(tmp_path: Path) -> None:
    def lost(observation_space: Any, action_space: Any) -> torch.nn.Module:
        return export_cases.own(observation_space, action_space)

    run = saved_run(tmp_path / "run", network=lost)
    for call in (shoal.load, shoal.evaluate):
        with pytest.raises(UserError, match=r"give it again, in Python as network=…, or .* --network module:factory"):
            call(run)
    assert shoal.load(run, network=lost).algorithm == "impala"


def test_threads_with_copies_do_not_disturb_each_other(tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run", "ppo", lstm=8))
    rows = np.stack(observations(policy, 40)).astype(np.float32)
    found: dict[int, list[Any]] = {}

    def play(number: int) -> None:
        own = policy.copy()
        found[number] = [own.act(row) for row in rows]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(actions == found[0] for actions in found.values())
    assert len(set(found[0])) > 1


def test_one_observation_takes_less_than_100_microseconds(tmp_path: Path) -> None:
    """The built-in network of two layers of 64; the best of many, since others use this machine too."""
    policy = shoal.load(saved_run(tmp_path / "run", hidden=(64, 64)))
    seen, best = policy.observation_space.sample(), 1.0
    for _ in range(30):
        begun = time.perf_counter()
        for _ in range(100):
            policy.act(seen)
        best = min(best, (time.perf_counter() - begun) / 100)
    assert best < 100e-6


def test_checkpoints_are_loaded_as_runs_are(tmp_path: Path) -> None:
    from shoal.checkpoints import Checkpoints

    run, other = saved_run(tmp_path / "run", seed=0), saved_run(tmp_path / "other", seed=5)
    better = dict(np.load(other / "weights.npz"))
    store = Checkpoints(run / "checkpoints")
    store.save({"weights": better}, {})
    store.save_best({"weights": better}, {})
    rows = np.stack(observations(shoal.load(run), 50))
    plain, wanted = (np.asarray(shoal.load(path).act(rows)) for path in (run, other))
    assert (plain != wanted).any()
    for source in (
        f"{run}:best",
        str(next((run / "checkpoints").glob("0*"))),
        next((run / "checkpoints").glob("best-*")),
    ):
        assert (np.asarray(shoal.load(source).act(rows)) == wanted).all()


def test_evaluation_refuses_an_environment_of_other_spaces(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"Acrobot-v1 has the observations float32 \[6\], and the policy of"):
        shoal.evaluate(run, env="Acrobot-v1", episodes=1)
    with pytest.raises(UserError, match="--episodes 0 is out of range"):
        shoal.evaluate(run, episodes=0)


def test_damaged_spaces_are_one_sentence(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    whole = json.loads((run / "config.json").read_text())
    for spaces_ in ({}, 3, {"observation": {"kind": "sphere"}, "action": {}, "native_action": {}}):
        (run / "config.json").write_text(json.dumps(whole | {"spaces": spaces_}))
        with pytest.raises(UserError, match="its spaces cannot be read"):
            shoal.load(run)
    (run / "config.json").write_text(json.dumps(whole | {"spaces": None}))  # of an earlier version
    assert shoal.load(run).observation_space.shape == (4,)


class Frames(gymnasium.Env[Any, Any]):
    """Small pictures, of which a policy sees the last three."""

    observation_space = spaces.Box(0, 255, (40, 40), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((40, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.full((40, 40), 9, np.uint8), 1.0, False, True, {}


def test_frames_are_stacked_for_the_caller(tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run", env=Frames, frame_stack=3))
    assert policy.observation_space.shape == (40, 40)
    frames = np.random.default_rng(0).integers(0, 255, (6, 40, 40)).astype(np.uint8)
    found = [policy.act(frame) for frame in frames]
    padded = np.concatenate([frames[:1], frames[:1], frames])  # an episode's first frame is repeated
    none = np.zeros(1, np.bool_)
    judged = [policy.greedy.act(padded[None, row : row + 3], {}, none)[0][0] for row in range(6)]
    assert found == judged
    assert len(set(found)) > 1
    policy.reset()
    assert policy.act(frames[5]) == policy.greedy.act(np.stack([frames[5]] * 3)[None], {}, none)[0][0]


def test_rows_explore_as_the_environments_of_the_run_did(tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run", "apex_dqn", actors=3, envs_per_actor=1), seed=0)
    given: list[Any] = []
    exploring: Any = policy.exploring
    take = exploring.set_environments
    exploring.set_environments = lambda which, total: (given.append(which.tolist()), take(which, total))
    policy.act(np.zeros((5, 4), np.float32), explore=True)
    policy.act(np.zeros((2, 4), np.float32))
    assert given == [[0, 1, 2, 0, 1]]


def test_what_acted_on_another_device_acts_here(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    record["config"]["acting_device"] = "cuda:7"
    (run / "config.json").write_text(json.dumps(record))
    policy = shoal.load(run)
    assert policy.config.acting_device == "cpu"
    assert policy.act([0.0] * 4) in (0, 1)


class OtherActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole with a button that does nothing."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.action_space = spaces.Discrete(3)

    def step(self, action: Any) -> Any:
        return super().step(min(int(action), 1))


def test_an_environment_with_more_actions_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "describe_apart", describing.describe_here)
    with pytest.raises(UserError, match=r"has the actions Discrete\(3\), and the policy of .* on Discrete\(2\)"):
        shoal.evaluate(saved_run(tmp_path / "run"), env=OtherActions, episodes=1)


def test_an_evaluation_plays_as_the_runs_evaluator_did_and_closes_its_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    close = envs.Envs.close
    monkeypatch.setattr(envs.Envs, "close", lambda self: (closed.append(self.count), close(self))[1])
    run = saved_run(tmp_path / "run", eval_limit=3)
    assert shoal.evaluate(run, episodes=4, seed=0).returns == (3.0,) * 4
    assert closed[-1] == 4  # after those in which it was tried


def test_an_evaluation_that_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = saved_run(tmp_path / "run", eval_limit=3), []
    shoal.evaluate(run, episodes=4, seed=0, tell=told.append)
    assert told == []
    monkeypatch.setattr("shoal.playing.watching.PATIENCE", 0.0)
    shoal.evaluate(run, episodes=4, seed=0, tell=told.append)
    assert told == [
        f"still playing: {steps} steps in each of 4 environments so far (Ctrl-C ends it)" for steps in range(3)
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run"))
    sentence = "observation holds numbers that are not finite"
    for observation in ([0.0, value, 0.0, 0.0], [[0.0] * 4, [0.0, 0.0, 0.0, value]]):
        with pytest.raises(UserError, match=sentence):
            policy.act(observation)


def test_the_command_evaluates_as_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def evaluate(source: str, tell: Any, **given: Any) -> Evaluation:
        asked.append((source, given))
        tell("still playing")
        return Evaluation("runs/A", "ppo", "CartPole-v1", 3, 2, 15.0, 5.0, 10.0, 20.0, (10.0, 20.0))

    monkeypatch.setattr("shoal.playing.evaluate", evaluate)
    typed = ["--episodes", "2", "--seed", "3", "--env", "CartPole-v1", "--env-option", "length=7"]
    assert (
        main(["eval", "runs/A:best", *typed, "--network", "nets:Net", "--core", "nets:Core", "--json", "--trust"]) == 0
    )
    written = capsys.readouterr()
    assert written.err == "shoal: still playing\n"
    found = json.loads(written.out)
    assert (found["eval_return"], found["spread"], found["lowest"], found["highest"]) == (15.0, 5.0, 10.0, 20.0)
    assert main(["eval", "runs/A"]) == 0
    nothing = dict.fromkeys(("env", "env_options", "seed", "network", "core"))
    given = {"episodes": 2, "env": "CartPole-v1", "env_options": {"length": 7}, "seed": 3}
    assert asked == [
        ("runs/A:best", given | {"network": "nets:Net", "core": "nets:Core", "trust": True}),
        ("runs/A", nothing | {"episodes": 50, "trust": False}),
    ]
