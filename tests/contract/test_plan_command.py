"""`shoal plan` as it is typed: a plan of every family of programs, what it is given, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands.plan import bytes_per_second
from shoal.cli.main import main
from shoal.errors import UserError

WAITS = ["--env", "waiting_env:Waiting", "--vectorizer", "sync", "--envs-per-actor", "2", "--hidden", "8"]
SMALL = {
    "impala": ["--unroll", "5", "--batch", "4", "--queue", "8"],
    "impala central": ["--unroll", "5", "--batch", "4", "--queue", "8", "--inference", "central"],
    "apex_dqn": ["--rows", "4", "--batch", "16", "--learning-starts", "32", "--samples-per-insert", "4"],
    "ppo": ["--unroll", "5", "--minibatches", "1"],
    "a3c": ["--unroll", "5"],
}
QUICK = ("impala", "apex_dqn")
ENVIRONMENT = """
import time
import gymnasium
import numpy as np


class Waiting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        time.sleep(0.004)
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, False, self.steps == 50, {}
"""


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waiting_env.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def planned(words: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plan", *words, "--seconds", "1.5", "--json"]) == 0, capfd.readouterr().err
    found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return found


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SMALL]
)
def test_a_plan_of_every_family_has_all_its_parts(
    program: str, waiting: None, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [program.split()[0], *WAITS, *SMALL[program], "--steps-per-second", "3000", "--cores", "4"]
    found = planned(words, capfd)
    # two environments, one after the other, wait 4 ms each: 250 steps/s an actor at the most
    assert found["costs"]["row_wait"] == pytest.approx(8e-3, rel=0.25)
    assert found["reached"]
    assert 12 <= found["actors"] <= 80
    assert sum(machine["actors"] for machine in found["machines"]) == found["actors"]
    assert found["environments"] == 2 * found["actors"]
    assert found["shards"] >= 1
    assert found["learners"] == (0 if program == "a3c" else 1)
    assert found["inference_servers"] == (1 if "central" in program else 0)
    for machine in found["machines"]:
        assert 0 < machine["cores_busy"] <= 1
        assert machine["memory_bytes"] > 1e6
    assert found["full_first"][0]["env_steps_per_second"] >= found["env_steps_per_second"] * 0.99
    costs = found["costs"]
    assert costs["block_bytes"] > 0
    assert costs["weights_bytes"] > 0
    assert costs["row_cpu"] > 0
    assert costs["insert_cpu"] > 0
    assert program == "a3c" or costs["update_cpu"] > 0


@pytest.mark.timeout(200)
def test_a_plan_is_told_to_people_with_what_was_given(waiting: None, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["impala", *WAITS, *SMALL["impala"], "--steps-per-second", "1e5", "--cores", "8", "--machines", "2"]
    words += ["--machine-network", "1Gbit", "--env-wait", "0.001", "--env-cpu", "0.002", "--update-seconds", "0.5"]
    assert main(["plan", *words, "--seconds", "1.5"]) == 0
    told = capfd.readouterr().out
    for part in (
        "impala on waiting_env:Waiting: 100,000 env steps/s wanted",
        "The target is NOT reached: learner",
        "Full first: learner",
        "8 cores, 1 Gbit/s",
        "a step of an environment waits for 0.001 s",
        "an update takes 0.5 s on the learner's device",
        "each version of the weights crosses once for every machine",
        "Assumed:",
    ):
        assert part in told, told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["impala", "--env", "CartPole-v1"], "--steps-per-second is missing"),
        (["impala", "--env", "CartPole-v1", "--steps-per-second", "0"], "--steps-per-second 0.0 is too small"),
        (["impala", "--env", "CartPole-v1", "--steps-per-second", "-5"], "--steps-per-second -5.0 is too small"),
        (["impala", "--env", "CartPole-v1", "--steps-per-second", "nan"], "--steps-per-second nan"),
        (["impala", "--env", "NoSuchEnv-v0", "--steps-per-second", "10"], "NoSuchEnv"),
        (["impala", "--steps-per-second", "10", "--machine-network", "fast"], "--machine-network fast is no rate"),
        (["impala", "--steps-per-second", "10", "--machines", "0"], "--machines 0 is out of range"),
        (["impala", "--steps-per-second", "10", "--cores", "0"], "--cores 0 is out of range"),
        (["bc", "--data", "nowhere", "--steps-per-second", "10"], "nowhere"),
        (["nothing", "--steps-per-second", "10"], "There is no algorithm nothing"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(
    words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    told = capfd.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert not told.out


def test_rates_of_networks_are_bits_or_bytes() -> None:
    assert bytes_per_second("10Gbit") == bytes_per_second("10gbit/s") == bytes_per_second("10 Gb") == 1.25e9
    assert bytes_per_second("100Mbit") == 12.5e6
    assert bytes_per_second("1.2GB") == 1.2e9
    for text in ("", "0Gbit", "10", "Gbit", "-1Gbit", "10Gbyte"):
        with pytest.raises(UserError, match="is no rate"):
            bytes_per_second(text)
