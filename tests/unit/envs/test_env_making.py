"""Names: which environment is meant, what it is like, and one sentence with the remedy when there is none."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import VectorEnv

from shoal import envs
from shoal.envs import EnvSpec
from shoal.envs.choosing import measure
from shoal.envs.vectorizers import InProcess, spread
from shoal.errors import UserError

MY_MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from counting_envs import Counting, CountingVector

gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=7)

def make(lengths=(2,)):
    return Counting(lengths=lengths)

def vector(num_envs):
    return CountingVector(num_envs)

class Holder:
    make = staticmethod(make)

number = 3
"""


@pytest.fixture
def my_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_simulator.py").write_text(MY_MODULE)
    (tmp_path / "needs_more.py").write_text("import a_package_nobody_has")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = dict(gymnasium.registry)
    yield tmp_path
    sys.modules.pop("my_simulator", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def lengths(vector: envs.Envs, steps: int = 20) -> set[int]:
    vector.reset()
    for _ in range(steps):
        vector.step(np.zeros(vector.count, np.int64))
    return {episode.length for episode in vector.episodes()}


def test_the_native_version_is_used_where_one_is_registered() -> None:
    assert isinstance(envs.make("CartPole-v1", 2, seed=0)._vector, CartPoleVectorEnv)
    assert isinstance(envs.make("CartPole-v1", 2, seed=0, vectorizer="sync")._vector, InProcess)
    assert isinstance(envs.make("Acrobot-v1", 2, seed=0)._vector, InProcess)


def test_an_id_without_a_version_is_the_latest() -> None:
    assert envs.describe("CartPole").max_episode_steps == 500


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
def test_options_reach_the_environment(vectorizer: Any) -> None:
    limited = envs.make("CartPole-v1", 2, seed=0, options={"max_episode_steps": 4}, vectorizer=vectorizer)
    assert lengths(limited) == {4}


def test_a_native_version_that_does_not_know_an_option_gives_way_to_sync(my_folder: Path) -> None:
    gymnasium.register("Both-v0", "counting_envs:counting", vector_entry_point="counting_envs:CountingVector")
    options = {"fail_at": None}
    assert isinstance(envs.make("Both-v0", 1, seed=0)._vector, VectorEnv)
    assert isinstance(envs.make("Both-v0", 1, seed=0, options=options)._vector, InProcess)
    with pytest.raises(UserError, match="does not take these options"):
        envs.make("Both-v0", 1, seed=0, options=options, vectorizer="native")


def test_a_native_version_with_another_autoreset_is_not_used(my_folder: Path) -> None:
    gymnasium.register("Same-v0", "counting_envs:counting", vector_entry_point=same_step_vector)
    assert isinstance(envs.make("Same-v0", 2, seed=0)._vector, InProcess)
    with pytest.raises(UserError, match="NEXT_STEP"):
        envs.make("Same-v0", 2, seed=0, vectorizer="native")


def same_step_vector(num_envs: int) -> VectorEnv[Any, Any, Any]:
    import sample_envs

    return sample_envs.same_step(num_envs)


def test_a_factory_in_the_current_folder_is_found(my_folder: Path) -> None:
    assert lengths(envs.make("my_simulator:make", 2, seed=0)) == {2}
    assert lengths(envs.make("my_simulator:make", 2, seed=0, options={"lengths": (3,)})) == {3}
    assert lengths(envs.make("my_simulator:Holder.make", 2, seed=0)) == {2}
    assert envs.make("my_simulator:vector", 5, seed=0).count == 5


def test_a_module_may_also_register_a_gymnasium_id(my_folder: Path) -> None:
    assert envs.describe("my_simulator:Mine-v0").max_episode_steps == 7
    assert envs.make("my_simulator:Mine-v0", 2, seed=0).count == 2


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("CartPoel-v1", {}, "There is no environment CartPoel-v1. Did you mean CartPole-v1"),
        ("cartpole-v1", {}, "Did you mean CartPole-v1"),
        ("qqqq", {}, "module:factory"),
        ("what is this?", {}, "There is no environment"),
        (":make", {}, "is no module:factory"),
        ("my_simulator:", {}, "is no module:factory"),
        ("HalfCheetah-v2", {}, "gymnasium-robotics"),
        ("no_such_module:make", {}, "there is no module 'no_such_module'"),
        ("needs_more:make", {}, "a_package_nobody_has"),
        ("my_simulator:makee", {}, "has no 'makee'. Did you mean make?"),
        ("my_simulator:number", {}, "not a function"),
        ("my_simulator:Mine-v9", {}, "There is no environment my_simulator:Mine-v9. Did you mean Mine-v0"),
        ("my_simulator:make", {"length": 3}, "has no option 'length'"),
        ("CartPole-v1", {"wings": 3}, "wings"),
        ("sample_envs:not_an_environment", {}, "returned str; it must return a gymnasium.Env"),
        ("sample_envs:fixed_vector", {}, "returned a vector of 4 environments where 2 were asked for"),
        ("sample_envs:same_step", {}, "NEXT_STEP"),
        ("sample_envs:sampled", {"observation": spaces.Text(5)}, "Text space of 'observation' is not supported"),
        (
            "sample_envs:sampled",
            {"observation": spaces.Dict({"deep": spaces.Tuple((spaces.Sequence(spaces.Discrete(2)),))})},
            "Sequence space of 'observation/deep/0' is not supported",
        ),
        ("sample_envs:sampled", {"observation": spaces.Dict({"a/b": spaces.Discrete(2)})}, "rename"),
        ("sample_envs:sampled", {"observation": spaces.Dict({"0": spaces.Discrete(2)})}, "rename"),
        ("sample_envs:sampled", {"action": spaces.MultiBinary(2)}, "actions in MultiBinary.* are not supported"),
        ("sample_envs:sampled", {"action": spaces.Box(0, 9, (2,), np.int64)}, "not supported"),
    ],
)
def test_what_cannot_be_made_is_refused_with_one_sentence(
    my_folder: Path, spec: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        envs.make(spec, 2, seed=0, options=options)
    assert "\n" not in str(caught.value)


def test_a_wrong_count_or_vectorizer_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        envs.make("CartPole-v1", 0, seed=0)
    with pytest.raises(UserError, match="choose from auto, native, sync, async"):
        envs.make("CartPole-v1", 1, seed=0, vectorizer="fast")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no vector version"):
        envs.make("Acrobot-v1", 1, seed=0, vectorizer="native")
    with pytest.raises(UserError, match="single environments"):
        envs.make("counting_envs:counting", 1, seed=0, vectorizer="native")
    with pytest.raises(UserError, match="makes a vector"):
        envs.make("counting_envs:counting_vector", 1, seed=0, vectorizer="sync")


@pytest.mark.parametrize(
    ("module", "spec", "extra"),
    [("ale_py", "ALE/Pong-v5", "atari"), ("Box2D", "LunarLander-v3", "box2d"), ("mujoco", "Hopper-v5", "mujoco")],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(module: str, spec: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\nfrom shoal import envs, errors\n"
        f"try: envs.describe({spec!r})\nexcept errors.UserError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == (f"{spec} needs packages that are not installed; run: pip install 'shoal[{extra}]'")


def test_an_id_of_dm_control_is_told_how_it_is_typed_and_what_brings_it() -> None:
    with pytest.raises(UserError, match=r"--env shimmy:dm_control/cheetah-run-v0, with pip install 'shoal\[dm-control"):
        envs.describe("dm_control/cheetah-run-v0")


@pytest.mark.parametrize(
    ("spec", "kind", "limit", "threshold"),
    [
        ("CartPole-v1", "classic", 500, 475.0),
        ("Pendulum-v1", "control", 200, None),
        ("Taxi-v4", "classic", 200, 8.0),
        ("counting_envs:counting", "classic", None, None),
        ("shoal/Recall-v0", "classic", None, 0.95),
    ],
)
def test_describe_tells_the_kind_and_what_is_registered(
    spec: str, kind: str, limit: int | None, threshold: float | None
) -> None:
    found = envs.describe(spec)
    assert (found.spec, found.kind, found.max_episode_steps, found.reward_threshold) == (spec, kind, limit, threshold)
    assert pickle.loads(pickle.dumps(found)) == found
    made = envs.make(spec, 1, seed=0)
    assert (found.observation_space, found.action_space) == (made.observation_space, made.action_space)


@pytest.mark.parametrize(
    ("observation", "kind"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "pixels"),
        (spaces.Dict({"frame": spaces.Box(0, 255, (8, 8), np.uint8), "speed": spaces.Discrete(3)}), "pixels"),
        (spaces.Box(0, 1, (1000,), np.float32), "other"),
        (spaces.Box(0, 1, (8, 8), np.float32), "classic"),
    ],
    ids=["frames", "frames in a dict", "many numbers", "few numbers"],
)
def test_the_kind_follows_from_the_spaces(observation: spaces.Space[Any], kind: str) -> None:
    assert envs.describe("sample_envs:sampled", {"observation": observation}).kind == kind


def test_describing_does_not_import_torch() -> None:
    code = "import sys; from shoal import envs; envs.describe('CartPole-v1'); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["False"]


class Picture(gymnasium.Env[Any, Any]):
    """Small pictures of the time; knows with what it was made."""

    observation_space = spaces.Box(0, 255, (40, 40), np.uint8)
    action_space = spaces.Discrete(2)
    made: list[tuple[int, str]]

    def __init__(self, seed: int = -1, colour: str = "grey") -> None:
        self.time = 0
        Picture.made.append((seed, colour))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros((40, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.full((40, 40), self.time, np.uint8), 1.0, False, False, {}


def described() -> EnvSpec:
    space, action = Picture.observation_space, Picture.action_space
    return EnvSpec(Picture, space, action, "other", None, None, options={"colour": "red"}, stack=3, limit=2)


def test_a_factory_is_called_once_for_every_environment_with_a_seed_of_its_own() -> None:
    Picture.made = []
    envs.make(Picture, 3, seed=5, vectorizer="sync").close()
    assert Picture.made == [(seed, "grey") for seed in spread(5, 3)]
    assert len(set(spread(5, 3))) == 3


def test_what_a_description_says_holds_where_nothing_else_is_given() -> None:
    for given, colour, stack, limit in (
        ({}, "red", 3, 2),
        ({"options": {"colour": "blue"}, "stack": 4, "limit": 5}, "blue", 4, 5),
    ):
        Picture.made = []
        vector = envs.make(described(), 1, seed=0, vectorizer="sync", **given)  # type: ignore[arg-type]
        assert [made[1] for made in Picture.made] == [colour]
        assert vector.stacks == {"observation": stack}
        assert lengths(vector) == {limit}
        vector.close()


def test_environments_that_are_limited_one_by_one_do_not_cut_each_other() -> None:
    """The second one begins a step later, as its first episode ends by itself."""

    class Once(Picture):
        def __init__(self, ends: bool) -> None:
            super().__init__()
            self.ends = ends

        def step(self, action: Any) -> Any:
            observation, reward, _, _, info = super().step(action)
            ended, self.ends = self.ends, False
            return observation, reward, ended, False, info

    Picture.made = []
    first = iter([False, True])
    vector = envs.make(lambda: Once(next(first)), 2, seed=0, vectorizer="sync", limit=4)
    vector.reset()
    for _ in range(12):
        vector.step(np.zeros(2, np.int64))
    assert sorted(episode.length for episode in vector.episodes()) == [1, 4, 4, 4, 4]
    vector.close()


def test_a_row_that_resets_is_no_measure_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only steps and resets turn: 3 ms and 1 ms, of which the processor computes a part."""
    now = {"wall": 0.0, "processor": 0.0, "computes": 0.0, "given_up": 0}
    monkeypatch.setattr("shoal.envs.choosing.time.perf_counter", lambda: now["wall"])
    monkeypatch.setattr("shoal.envs.choosing.time.process_time", lambda: now["processor"])
    monkeypatch.setattr("shoal.envs.choosing._given_up", lambda: now["given_up"])

    class Timed(Picture):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            now["wall"] += 0.001
            return super().reset()

        def step(self, action: Any) -> Any:
            now["wall"] += 0.003
            now["processor"] += now["computes"]
            now["given_up"] += 1
            observation, reward, _, _, info = super().step(action)
            return observation, reward, self.time == 2, False, info

    Picture.made = []
    for now["computes"], waits, count in ((0.002, False, 1), (0.001, True, 1), (0.002, False, 3)):
        vector = envs.make(Timed, count, seed=0, vectorizer="sync")
        vector.reset()
        found = measure(vector)
        assert (round(found.seconds, 6), found.waits) == (0.003, waits)
        vector.close()
