"""The state of environments: a new one that has taken it goes on exactly as the old one, across episode ends."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal import envs, tree
from shoal.checkpoints.state_files import read_state, write_state
from shoal.envs.faults import EnvFault
from shoal.envs.state import NoState, load_layers, state_of_layers

TASKS = {  # and the steps after which it is saved
    "CartPole-v1": 33,
    "Pendulum-v1": 150,
    "Acrobot-v1": 60,
    "MountainCar-v0": 150,
    "MountainCarContinuous-v0": 40,
    "FrozenLake-v1": 7,
    "Taxi-v4": 120,
    "Blackjack-v1": 5,
    "CliffWalking-v1": 20,
    "HalfCheetah-v5": 40,
    "Humanoid-v5": 30,
    "Ant-v5": 30,
    "ALE/Pong-v5": 40,  # with sticky actions
    "shoal/Recall-v0": 20,
    "shoal/CartPoleHidden-v0": 20,
}


def make(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("ALE/"):
            import ale_py

            gymnasium.register_envs(ale_py)
        return gymnasium.make(name, disable_env_checker=True, **options)


def play(env: gymnasium.Env[Any, Any], actions: list[Any], ended: bool = False) -> tuple[list[Any], bool]:
    rows = []
    for action in actions:
        if ended:
            observation, reward, ended = env.reset()[0], 0.0, False
        else:
            observation, reward, terminated, truncated, _ = env.step(action)
            ended = bool(terminated or truncated)
        rows.append((np.array(observation), float(reward), ended))
    return rows, ended


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(one, other, strict=True))


def through_files(state: Any, folder: Path) -> Any:
    write_state(folder / "env", state)
    return read_state(folder / "env")


@pytest.mark.parametrize("name", TASKS)
def test_a_new_environment_goes_on_where_the_old_one_was(name: str, tmp_path: Path) -> None:
    old, new = make(name), make(name)
    old.reset(seed=3)
    old.action_space.seed(1)
    more = 30 if name.startswith("ALE/") else 250
    actions = [old.action_space.sample() for _ in range(TASKS[name] + more)]
    _, ended = play(old, actions[: TASKS[name]])
    state = through_files(state_of_layers(old), tmp_path)
    expected, _ = play(old, actions[TASKS[name] :], ended)
    new.reset(seed=99)
    load_layers(new, state)
    assert same(play(new, actions[TASKS[name] :], ended)[0], expected)
    old.close()
    new.close()


def test_the_same_without_the_state_would_differ() -> None:
    """Or the test above could not fail."""
    old, new = make("CartPole-v1"), make("CartPole-v1")
    old.reset(seed=3)
    new.reset(seed=99)
    assert not same(play(old, [0, 1] * 20)[0], play(new, [0, 1] * 20)[0])


def wrapped() -> gymnasium.Env[Any, Any]:
    env = make("Pendulum-v1")
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.ClipAction(env))
    env = gymnasium.wrappers.NormalizeObservation(gymnasium.wrappers.TransformReward(env, lambda reward: 2 * reward))
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.NormalizeReward(env), 3)


def test_gymnasiums_wrappers_keep_what_they_hold(tmp_path: Path) -> None:
    old, new = wrapped(), wrapped()
    old.reset(seed=1)
    new.reset(seed=2)
    actions = [np.array([torque], np.float32) for torque in np.linspace(-2, 2, 300)]
    play(old, actions[:50])
    state = through_files(state_of_layers(old), tmp_path)
    expected, _ = play(old, actions[50:])
    load_layers(new, state)
    assert same(play(new, actions[50:])[0], expected)


class Own(gymnasium.Env[Any, Any]):
    """A simulator that Python does not see into, and that gives its state."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.engine = type("Engine", (), {"position": 0.0})()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.engine.position = self.np_random.normal()
        return np.array([self.engine.position], np.float32), {}

    def step(self, action: Any) -> Any:
        self.engine.position += action + self.np_random.normal()
        return np.array([self.engine.position], np.float32), 0.0, False, False, {}

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.engine.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.position = state["position"]


class Silent(Own):
    state_dict = load_state_dict = None  # type: ignore[assignment]


class Careless(Own):
    def state_dict(self) -> dict[str, Any]:
        return {"engine": self.engine}


class Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper whose whole state is plain."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.steps), terminated, truncated, info


class Opaque(Counting):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.socket = object()


def test_the_users_own_gives_its_state_and_its_random_numbers_go_on(tmp_path: Path) -> None:
    old, new = Counting(Own()), Counting(Own())
    old.reset(seed=1)
    new.reset(seed=2)
    play(old, [1] * 10)
    state = through_files(state_of_layers(old), tmp_path)
    load_layers(new, state)
    assert same(play(new, [1] * 10)[0], play(old, [1] * 10)[0])


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Silent, r"test_env_state\.Silent cannot give its state.*add the methods state_dict and load_state_dict"),
        (Careless, r"test_env_state\.Careless\.state_dict\(\)\['engine'\] is a Engine, which is not plain data"),
        (lambda: Opaque(Own()), r"Opaque\.socket is a object, which is not plain data"),
    ],
)
def test_who_cannot_give_a_state_is_named(env: Any, sentence: str) -> None:
    made = env()
    made.reset(seed=0)
    with pytest.raises(NoState, match=sentence):
        state_of_layers(made)


def test_a_simulator_in_a_library_is_not_taken_for_one_whose_attributes_say_all() -> None:
    env = make("LunarLander-v3")
    env.reset(seed=0)
    with pytest.raises(NoState, match=r"LunarLander cannot give its state"):
        state_of_layers(env)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"plain": {"step": 3}}, "'step', which is none of its data"),
        ({"plain": {"action_space": 3}}, "'action_space', which is none of its data"),
        ({"plain": {"__class__": 3}}, "'__class__', which is none of its data"),
        ({"plain": {"_np_random": 3}}, "'_np_random', which is none of its data"),
        ({"generators": {"_np_random": {"bit_generator": "os"}}}, "of kind 'os' that it cannot take"),
        ({"queues": {"state": []}}, "a queue 'state', and it has none"),
        ({"objects": {"state": {"class": "x"}}}, "of another class"),
        ({"class": "os.system"}, "of other wrappers"),
    ],
)
def test_states_that_no_environment_gave_are_refused(change: dict[str, Any], sentence: str) -> None:
    env = make("CartPole-v1")
    env.reset(seed=0)
    states = state_of_layers(env)
    states[-1].update(change)
    with pytest.raises(EnvFault, match=sentence):
        load_layers(env, states)


# ---- vectors of environments, as actors step them

VECTORS = [
    *(("CartPole-v1", kind) for kind in ("native", "sync", "async")),
    *((name, kind) for name in ("FrozenLake-v1", "Blackjack-v1") for kind in ("sync", "async")),
    *((name, "sync") for name in ("Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "Taxi-v4", "HalfCheetah-v5")),
    ("ALE/Pong-v5", "sync"),
    ("shoal/Recall-v0", "native"),
    ("shoal/CartPoleHidden-v0", "native"),
]


def rows_of(made: envs.Envs, actions: list[Any]) -> list[Any]:
    rows = []
    for action in actions:
        step = made.step(action)
        parts = [*tree.flatten(step.observation).values(), *step[1:5]]
        rows.append((np.concatenate([part.reshape(made.count, -1).astype(np.float64) for part in parts], 1), 0))
    return [*rows, *((np.array(episode), 1) for episode in made.episodes())]


@pytest.mark.parametrize(("name", "vectorizer"), VECTORS)
def test_a_vector_goes_on_in_the_middle_of_its_episodes(name: str, vectorizer: Any, tmp_path: Path) -> None:
    """Saved after every one of some steps, so that some environments have just ended and are reset by the next."""
    old, new = (envs.make(name, 3, seed=seed, vectorizer=vectorizer, limit=25) for seed in (1, 2))
    space = old.action_space
    space.seed(5)
    actions = [np.stack([space.sample() for _ in range(3)]) for _ in range(90)]
    old.reset()
    new.reset()
    rows_of(old, actions[:20])
    for at in range(20, 30):
        state = through_files(old.state_dict(), tmp_path)
        expected = rows_of(old, actions[at : at + 1])
        if at in (20, 24, 25, 26):  # the limit ends episodes around here
            further = through_files(old.state_dict(), tmp_path)
            expected += rows_of(old, actions[at + 1 :])
            new.load_state_dict(state)
            assert same(rows_of(new, actions[at : at + 1]) + rows_of(new, actions[at + 1 :]), expected)
            old.load_state_dict(further)
    old.close()
    new.close()


def test_a_vector_says_who_cannot_give_a_state_and_takes_none_of_another_size() -> None:
    for vectorizer in ("sync", "async"):
        made = envs.make(Silent, 2, seed=0, vectorizer=vectorizer, limit=9)
        made.reset()
        with pytest.raises(NoState, match=r"Silent cannot give its state"):
            made.state_dict()
        assert made.open_episodes() == 2
        assert made.step(np.stack([made.action_space.sample()] * 2)).valid.all()  # and goes on
        assert made.losses() == []
        made.close()
    two, three = (envs.make("CartPole-v1", count, seed=0) for count in (2, 3))
    two.reset()
    three.reset()
    with pytest.raises(EnvFault, match="the state is of 2 environments, and there are 3"):
        three.load_state_dict(two.state_dict())


def test_a_state_of_other_wrappers_is_refused_by_processes_too() -> None:
    one, other = (
        envs.make("CartPole-v1", 2, seed=0, vectorizer="async"),
        envs.make("Acrobot-v1", 2, seed=0, vectorizer="async"),
    )
    one.reset()
    other.reset()
    with pytest.raises(EnvFault, match="is of other wrappers"):
        other.load_state_dict(one.state_dict())
    other.step(np.zeros(2, np.int64))  # it goes on
    one.close()
    other.close()
