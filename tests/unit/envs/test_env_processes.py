"""Environments in processes of their own: one that crashes or hangs costs its episode, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal import envs
from shoal.algorithms import impala, ppo
from shoal.config import apply_preset
from shoal.envs import EnvFault, EnvSpec
from shoal.envs.choosing import choose, measure, most_environments
from shoal.errors import UserError
from shoal.experiment.environments import describe_env, fit
from shoal.loops.evaluator import evaluate

NORMAL, CRASH, LEAVE, HANG, RAISE = range(5)


class Fragile(gymnasium.Env[Any, Any]):
    """Counts its steps, gives 1 for each, and does what the action says."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, length: int = 6) -> None:
        self.length, self.time = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        match int(action):
            case 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 2:
                os._exit(7)
            case 3:
                time.sleep(60)
            case 4:
                raise ValueError("no such valve")
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time == self.length, False, {}


class Locked(Fragile):
    """Cannot be sent to another process, and says in which one it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.process = threading.Lock(), os.getpid()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.process == os.getpid()
        return super().step(action)


class Hopeless(Fragile):
    """Cannot be reset a second time."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        os._exit(3)


def test_environments_are_made_where_they_are_stepped() -> None:
    vector = envs.make(Locked, 2, seed=0, vectorizer="async")
    try:
        vector.reset()
        assert vector.step(np.zeros(2, np.int64)).reward.tolist() == [1.0, 1.0]
    finally:
        vector.close()


def made(count: int = 3, timeout: float = 0.0) -> envs.Envs:
    vector = envs.make(Fragile, count, seed=0, vectorizer="async", timeout=timeout)
    vector.reset()
    return vector


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (CRASH, "number 1 was ended by SIGSEGV"),
        (LEAVE, "number 1 ended with exit code 7"),
        (HANG, "number 1 did not come back from a step within 0.5 s"),
    ],
)
def test_what_ends_or_hangs_is_replaced_alone(action: int, why: str) -> None:
    vector = made(timeout=0.5 if action == HANG else 0.0)
    for _ in range(2):
        vector.step(np.zeros(3, np.int64))
    step = vector.step(np.array([NORMAL, action, NORMAL]))
    assert step.valid.tolist() == [True, False, True]
    assert step.reward.tolist() == [1.0, 0.0, 1.0]
    assert step.observation.ravel().tolist() == [3.0, 0.0, 3.0]
    assert not (step.terminated | step.truncated).any()
    assert [(episode.return_, episode.length) for episode in vector.episodes()] == [(2.0, 2)]
    (said,) = vector.losses()
    assert why in said
    assert vector.losses() == []
    vector.step(np.zeros(3, np.int64))
    rows = [vector.step(np.zeros(3, np.int64)) for _ in range(5)]
    assert rows[1].terminated.tolist() == [True, False, True]
    assert [(episode.return_, episode.length) for episode in vector.episodes()] == [(6.0, 6)] * 3
    vector.close()


def test_what_an_environment_raises_is_told_as_its_fault() -> None:
    vector = made(2)
    with pytest.raises(EnvFault, match=r"Fragile raised ValueError: no such valve \(test_env_processes.py, line \d+\)"):
        vector.step(np.array([NORMAL, RAISE]))
    vector.close()


def test_an_environment_that_never_begins_is_given_up() -> None:
    vector = envs.make(Hopeless, 1, seed=0, vectorizer="async")
    with pytest.raises(EnvFault, match=r"number 0 ended with exit code 3.* 4 times in a row"):
        vector.reset()
    vector.close()


def test_an_evaluation_counts_a_lost_episode_once() -> None:
    class CrashOnce:
        steps = 0

        def initial_state(self, count: int) -> dict[str, Any]:
            return {}

        def act(self, observation: Any, state: Any, first: Any) -> Any:
            self.steps += 1
            return np.array([CRASH if self.steps == 3 else NORMAL, NORMAL]), {}, {}

    vector = envs.make(Fragile, 2, seed=0, vectorizer="async")
    assert evaluate(vector, CrashOnce(), 2) == [2.0, 6.0]  # type: ignore[arg-type]
    vector.close()


def test_an_environment_that_works_in_between_may_be_lost_any_number_of_times() -> None:
    vector = made(1)
    for _ in range(5):
        assert vector.step(np.array([LEAVE])).valid.tolist() == [False]
        assert vector.step(np.array([NORMAL])).reward.tolist() == [1.0]
    assert len(vector.losses()) == 5
    vector.close()


def test_ctrl_c_is_not_for_the_environments() -> None:
    vector = made(1)
    os.kill(vector._vector._processes[0]._process.pid, signal.SIGINT)  # type: ignore[attr-defined]
    assert vector.step(np.array([NORMAL])).valid.tolist() == [True]
    assert vector.losses() == []
    vector.close()


class Tidy(Fragile):
    """Leaves a file where it was closed, and gives its state."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def state_dict(self) -> dict[str, Any]:
        if self.time == 3:
            os._exit(9)
        return {"time": self.time}

    def load_state_dict(self, state: Any) -> None:
        self.time = state["time"]

    def close(self) -> None:
        with open(self.place, "a") as file:
            file.write("closed\n")


def test_environments_are_closed_in_their_processes(tmp_path: Path) -> None:
    vector = envs.make(partial(Tidy, str(tmp_path / "told")), 2, seed=0, vectorizer="async")
    vector.reset()
    vector.close()
    assert (tmp_path / "told").read_text() == "closed\n" * 2


def test_whoever_is_lost_while_it_gives_its_state_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    vector = envs.make(partial(Tidy, str(tmp_path / "told")), 2, seed=0, vectorizer="async")
    vector.reset()
    vector.step(np.zeros(2, np.int64))
    state = vector.state_dict()
    assert len(state["vector"]) == 1
    for _ in range(2):
        vector.step(np.zeros(2, np.int64))
    with pytest.raises(EnvFault, match="ended with exit code 9"):
        vector.state_dict()
    vector.close()


def test_the_timeout_of_a_description_holds_where_none_is_given() -> None:
    told = spec(2e-5, timeout=3.0, vectorizer="async")
    for given, expected in ((0.0, 3.0), (1.5, 1.5)):
        vector = envs.make(told, 1, seed=0, timeout=given)
        assert vector._vector.timeout == expected  # type: ignore[attr-defined]
        vector.close()


def test_no_process_is_left() -> None:
    vector = made(2)
    processes = [process._process for process in vector._vector._processes]  # type: ignore[attr-defined]
    vector.close()
    assert not any(process.is_alive() for process in processes)


def spec(seconds: float, waits: bool = False, timeout: float = 0.0, vectorizer: Any = "auto") -> EnvSpec:
    space = spaces.Discrete(2)
    return EnvSpec(
        Fragile, space, space, "other", None, None, vectorizer=vectorizer, timeout=timeout, step_time=(seconds, waits)
    )


@pytest.mark.parametrize(
    ("found", "actors", "chosen", "why"),
    [
        (spec(2e-5), 1, "sync", "takes 0.02 ms, too little"),
        (spec(5e-3), 1, "async", "takes 5 ms, and there are 4 cores for 1 actor"),
        (spec(5e-3), 4, "sync", "4 actors keep 4 cores busy"),
        (spec(5e-3, waits=True), 4, "async", "mostly waits"),
        (spec(2e-5, timeout=3.0), 1, "async", "--env-timeout"),
        (spec(5e-3, vectorizer="sync"), 1, "sync", None),
        (spec(0.0), 1, "auto", None),
    ],
)
def test_the_vectorizer_is_chosen_by_what_a_step_takes(found: EnvSpec, actors: int, chosen: str, why: Any) -> None:
    vectorizer, said = choose(found, actors, cores=4)
    assert vectorizer == chosen
    assert said is None if why is None else why in (said or "")


class Sleepy(Fragile):
    action_space = spaces.Discrete(1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        return super().step(0)


def test_a_users_environment_is_measured_and_a_registered_one_is_not() -> None:
    found = describe_env(ppo.Config(env=Sleepy))
    assert (found.vectorizer, "mostly waits" in (found.vectorizer_note or "")) == ("async", True)
    assert found.step_time[0] >= 0.01
    assert describe_env(ppo.Config()).vectorizer_note is None


def test_a_timeout_without_processes_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"--env-timeout 2 needs a process for each environment: add --vectorizer async"
    ):
        describe_env(ppo.Config(env_timeout=2.0))


def test_what_is_raised_while_steps_are_timed_is_left_for_the_run_to_see() -> None:
    class RaisesLater(gymnasium.Wrapper[Any, Any, Any, Any]):
        made = 0

        def step(self, action: Any) -> Any:
            self.made += 1
            if self.made > 5:
                raise ValueError("later")
            return super().step(action)

    spec = envs.describe(lambda: RaisesLater(gymnasium.make("CartPole-v1")), vectorizer="sync")
    several = envs.make(spec, 2, seed=0)
    several.reset()
    assert measure(several).seconds > 0.0
    with pytest.raises(ValueError, match="later"):
        several.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("vectorizer", "seconds", "waits", "actors", "most"),
    [
        ("sync", 1e-5, False, 1, None),
        ("async", 0.02, True, 1, 16),
        ("async", 0.02, False, 1, 8),
        ("async", 0.02, False, 4, 2),
        ("sync", 0.003, False, 8, 32),
        ("sync", 0.5, False, 8, 2),
    ],
)
def test_a_slow_step_leaves_an_actor_few_environments(
    vectorizer: Any, seconds: float, waits: bool, actors: int, most: int | None
) -> None:
    spec = replace(envs.describe("CartPole-v1"), vectorizer=vectorizer, step_time=(seconds, waits))
    assert most_environments(spec, actors, cores=4)[0] == most


def test_the_measured_time_of_a_step_decides_the_number_of_environments_unless_one_was_given() -> None:
    spec = replace(envs.describe("CartPole-v1"), vectorizer="async", step_time=(0.02, True))
    cfg, env = fit(apply_preset(impala.Config(env="CartPole-v1"), impala.PRESETS, spec.kind), spec, "local")
    assert (cfg.envs_per_actor, cfg.batch, cfg.queue) == (16, 16, 16)
    assert "--envs-per-actor 16 --batch 16 --queue 16 (not 256 environments)" in (env.vectorizer_note or "")
    cfg, _ = fit(apply_preset(ppo.Config(env="CartPole-v1", envs_per_actor=100), ppo.PRESETS, spec.kind), spec, "local")
    assert cfg.envs_per_actor == 100
    for given, runtime in (({"preset": "classic"}, "local"), ({}, "inline")):
        asked = apply_preset(ppo.Config(env="CartPole-v1", **given), ppo.PRESETS, spec.kind)
        assert fit(asked, spec, runtime)[0].envs_per_actor == 128


class Busy(Fragile):
    action_space = spaces.Discrete(1)  # of Fragile's others one hangs and one ends this process

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.process_time() + 0.004
        while time.process_time() < until:
            pass
        return super().step(action)


def test_a_core_that_others_use_is_not_taken_for_an_environment_that_waits() -> None:
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    busy = "import time\nuntil = time.monotonic() + 10\nwhile time.monotonic() < until: pass"  # ends by itself
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(3)]
    try:
        for other in others:
            os.sched_setaffinity(other.pid, one)
        os.sched_setaffinity(0, one)
        vector = envs.make(Busy, 1, seed=0, vectorizer="sync")
        vector.reset()
        assert not measure(vector).waits
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()
