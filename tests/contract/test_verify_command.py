"""`shoal verify` as it is typed: with SIGKILL, and an interpreter for each life."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logged_data import page_options
from shoal.cli.main import main
from shoal.runs import registry

TINY = ["--envs-per-actor", "2", "--updates", "4", "--json"]
SMALL = [*TINY, "--hidden", "8"]
ENVS = '''
import random
import gymnasium, numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

class Silent(CartPoleEnv):
    pass

OFFSET = random.Random().random() * 1e-3

class Disturbed(CartPoleEnv):
    def add(self):
        return 0.0
    def step(self, action):
        observation, *rest = super().step(action)
        return observation + np.float32(self.add()), *rest
    def state_dict(self):
        return {"state": list(self.state), "beyond": self.steps_beyond_terminated}
    def load_state_dict(self, state):
        self.state, self.steps_beyond_terminated = tuple(state["state"]), state["beyond"]

class Hashing(Disturbed):
    def add(self):
        return hash("left") % 1000 * 1e-6

class DrawnAtImport(Disturbed):
    def add(self):
        return OFFSET

class Forgetful(CartPoleEnv):
    """Its noise comes from a generator that its state leaves out."""
    def __init__(self):
        super().__init__()
        self.noise = np.random.default_rng()
    def step(self, action):
        observation, *rest = super().step(action)
        return observation + self.noise.normal(size=4).astype(np.float32) * 1e-3, *rest
    def state_dict(self):
        return {"state": list(self.state), "beyond": self.steps_beyond_terminated}
    def load_state_dict(self, state):
        self.state, self.steps_beyond_terminated = tuple(state["state"]), state["beyond"]
'''


def verdict(capfd: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, object]:
    assert main(["verify", *words]) == code, capfd.readouterr()
    told: dict[str, object] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return told


def test_a_run_that_was_killed_is_what_it_would_have_been(capfd: pytest.CaptureFixture[str]) -> None:
    told = verdict(capfd, 0, "impala", *SMALL, "--unroll", "4", "--batch", "2")
    assert told["identical"]
    assert (told["updates"], told["first"]) == (8, None)
    assert told["killed_at"] in (4, 5), "at the first checkpoint of so many"


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent_envs.py").write_text(ENVS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("environments")
def test_an_environment_that_cannot_be_saved_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    told = verdict(capfd, 1, "impala", *SMALL, "--unroll", "4", "--batch", "2", "--env", "silent_envs:Silent")
    assert not told["identical"]
    assert str(told["first"]).startswith("the environment: silent_envs.Silent cannot give its state")


@pytest.mark.usefixtures("environments")
@pytest.mark.parametrize("name", ["Hashing", "DrawnAtImport"])
def test_what_a_process_draws_for_itself_is_found(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Forks of one process have it in common: a real kill and resume is not one."""
    told = verdict(capfd, 1, "impala", *SMALL, "--unroll", "4", "--batch", "2", "--env", f"silent_envs:{name}")
    assert not told["identical"]
    assert told["first_at"] == told["killed_at"], "at the first checkpoint, which is before the kill"


@pytest.mark.slow
@pytest.mark.usefixtures("environments")
def test_a_generator_that_a_state_leaves_out_shows_in_the_environment(capfd: pytest.CaptureFixture[str]) -> None:
    told = verdict(capfd, 1, "impala", *SMALL, "--unroll", "4", "--batch", "2", "--env", "silent_envs:Forgetful")
    assert str(told["first"]).startswith("the environment's")
    assert told["cannot_be_saved"] is None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", registry.names())
def test_every_algorithm_survives_sigkill_to_the_last_bit(algorithm: str, capfd: pytest.CaptureFixture[str]) -> None:
    filled = ["--learning-starts", "100"] if hasattr(registry.load(algorithm).Config(), "learning_starts") else []
    given = [word for name, value in page_options(algorithm).items() for word in (f"--{name}", value)]
    assert verdict(capfd, 0, algorithm, *TINY, *filled, *given)["identical"]
