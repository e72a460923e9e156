"""The parts of an update: every second is counted once, and bare loops exist for the methods that have a profile."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from shoal import optim
from shoal.bench.bare import METHODS, bare
from shoal.bench.limits import gathered
from shoal.bench.parts import PARTS, SEAMS, Parts, timing_seams
from shoal.bench.updates import Profile, lines
from shoal.cli.main import main
from shoal.config import apply_preset
from shoal.experiment.environments import describe_env
from shoal.runs import registry


def test_a_second_is_counted_for_the_innermost_part_alone() -> None:
    begin = time.perf_counter()
    parts = Parts()
    with parts.part("optimizer"):
        with parts.part("backward"):
            time.sleep(0.02)
        time.sleep(0.01)
    found = parts.read()
    assert found["backward"] >= 0.02
    assert found["optimizer"] >= 0.01
    assert found["forward"] == 0.0
    assert sum(found.values()) <= time.perf_counter() - begin


def test_another_thread_adds_nothing() -> None:
    parts = Parts()

    def elsewhere() -> None:
        with parts.part("target"):
            time.sleep(0.01)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert parts.read()["target"] == 0.0


def test_seams_are_as_before_when_the_timing_ends() -> None:
    before = [getattr(owner, name) for owner, name, _ in SEAMS]
    with timing_seams(Parts()):
        assert optim.Local.step is not before[1]
    assert [getattr(owner, name) for owner, name, _ in SEAMS] == before
    assert {part for *_, part in SEAMS} | {"forward", "rest"} == set(PARTS)


@pytest.mark.parametrize("name", METHODS)
def test_every_bare_loop_learns_from_its_learners_batch(name: str) -> None:
    page = registry.load(name)
    task = "CartPole-v1" if name == "impala" else "Pendulum-v1"
    small: dict[str, Any] = {"envs_per_actor": 2, "env": task}
    small |= {"unroll": 8} if name in ("ppo", "impala") else {"learning_starts": 32, "batch": 16}
    cfg = page.Config(**small)
    env = describe_env(cfg)
    cfg = apply_preset(cfg, page.PRESETS, env.kind)
    captured = gathered(page, cfg, env, 0)
    parts = Parts()
    step = bare(name, cfg, env, parts)
    assert step is not None
    for _ in range(2):
        step(dict(captured.batch))
    told = parts.read()
    assert told["backward"] > 0.0
    assert told["optimizer"] > 0.0


def test_the_user_reads_each_part_and_the_ratios() -> None:
    program = Profile({"forward": 1.0, "waiting": 1.0}, 1000)
    alone = Profile({"forward": 1.0}, 1000)
    told = lines({"program": program, "alone": alone, "bare": Profile({"forward": 2.0}, 1000)})
    assert len(told) == len(PARTS) + 5
    assert "50% of the updates" in told[-2]
    assert "50% of its time it waits" in told[-2]
    assert "2.00 times those of the bare loop" in told[-1]


def test_the_command_prints_the_profile_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench update td3 --env Pendulum-v1 --envs-per-actor 2 --learning-starts 64 --batch 32 --seconds 1.5 --json"
    assert main(words.split()) == 0
    told = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    for where in ("program", "alone", "bare"):
        assert told[where]["updates_per_second"] > 0.0
        assert told[where]["ms"]["backward"] > 0.0
    assert told["program"]["ms"]["publication"] > 0.0


def test_a_method_without_a_learner_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "update", "a3c", "--env", "CartPole-v1"]) == 2
    assert "no learner whose updates could be timed" in capsys.readouterr().err
