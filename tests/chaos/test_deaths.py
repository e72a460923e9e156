"""Processes are killed: nodes come back, what cannot come back is named, and nobody outlives the parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from victim import small_program

from leftovers import temporary_files
from shoal import envs
from shoal.algorithms import apex_dqn
from shoal.loops.wiring import Settings
from shoal.program import Handle, Program
from shoal.runtime import Run, RunFailed, Supervisor, launch
from shoal.runtime.local.zygote import Zygote
from shoal.runtime.supervise import Loss

VICTIM = Path(__file__).with_name("victim.py")
RAY = pytest.param("ray", marks=pytest.mark.ray)
SLOW_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])  # it starts an interpreter for every node


@pytest.fixture(params=["local", SLOW_RAY])
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


def learning(run: Run) -> Any:
    """The metrics of a run that has begun to learn."""
    metrics = run.client(Handle("metrics"))
    deadline = time.monotonic() + 60.0
    while not metrics.snapshot()["counts"].get("learner_steps"):
        assert time.monotonic() < deadline, "the run does not begin to learn"
        run.wait(0.1)
    return metrics


def env_steps(metrics: Any) -> float:
    return float(metrics.snapshot()["counts"]["env_steps"])


def test_a_killed_actor_is_back_within_five_seconds_and_is_counted(runtime: str) -> None:
    with launch(small_program(), runtime) as run:
        metrics = learning(run)
        old = run.pids()["actor/0"]
        os.kill(old, signal.SIGKILL)
        began = time.monotonic()
        while run.pids().get("actor/0", old) == old:
            run.wait(0.02)
        before = env_steps(metrics)
        while env_steps(metrics) == before:
            run.wait(0.02)
            assert time.monotonic() - began < 30.0, "the actor does not act again"
        assert time.monotonic() - began < (5.0 if runtime == "local" else 10.0)  # Ray starts a fresh interpreter
        assert run.supervisor.restarts == {"actor/0": 1}


def goes_on(run: Run, metrics: Any, victim: str, updates: int = 20) -> None:
    """Kill a node; the run must bring it back and make further updates."""
    old = run.pids()[victim]
    os.kill(old, signal.SIGKILL)
    deadline = time.monotonic() + 90.0
    while run.pids().get(victim, old) == old:
        run.wait(0.02)
        assert time.monotonic() < deadline, f"{victim} does not come back"
    before = metrics.snapshot()["counts"]["learner_steps"]
    while metrics.snapshot()["counts"]["learner_steps"] < before + updates:
        run.wait(0.1)
        assert time.monotonic() < deadline, "the run does not go on learning"
    assert run.supervisor.restarts[victim] == 1


def goes_on_without_blame(runtime: str, victim: str) -> None:
    losses: list[Loss] = []
    with launch(small_program(actors=2), runtime, supervisor=Supervisor(on_loss=losses.append)) as run:
        goes_on(run, learning(run), victim)
    assert [loss.node for loss in losses] == [victim], "those who only suffered from it are not blamed"


@pytest.mark.parametrize("victim", ["learner", "replay"])
def test_a_run_goes_on_when_the_learner_or_the_replay_is_killed(runtime: str, victim: str) -> None:
    goes_on_without_blame(runtime, victim)


def test_a_run_goes_on_when_the_weight_service_is_killed_whose_memory_others_hold() -> None:
    goes_on_without_blame("local", "weights")


def test_a_run_goes_on_when_the_inference_server_is_killed(runtime: str) -> None:
    with launch(small_program(actors=2, inference="central"), runtime) as run:
        goes_on(run, learning(run), "inference/0")


def test_a_run_goes_on_when_the_front_of_several_shards_is_killed(runtime: str) -> None:
    with launch(sharded_program(), runtime) as run:
        goes_on(run, learning(run), "replay")


def ends_with_one_sentence(runtime: str, victim: str) -> None:
    with launch(small_program(actors=2), runtime) as run:
        learning(run)
        os.kill(run.pids()[victim], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(RunFailed) as caught:
            run.wait(20.0)
        assert time.monotonic() - began < 10.0
    assert str(caught.value).startswith(f"node {victim!r} was killed")
    assert "\n" not in str(caught.value)
    assert caught.value.node == victim


def test_what_nobody_can_replace_ends_the_run_with_one_sentence(runtime: str) -> None:
    ends_with_one_sentence(runtime, "metrics")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_where_nobody_shares_memory_the_loss_of_the_weight_service_ends_the_run() -> None:
    ends_with_one_sentence("ray", "weights")


def test_a_run_goes_on_when_the_zygote_is_killed_and_an_actor_after_it() -> None:
    losses: list[Loss] = []
    with launch(small_program(actors=2), "local", supervisor=Supervisor(on_loss=losses.append)) as run:
        metrics = learning(run)
        zygote = psutil.Process(run.pids()["actor/0"]).ppid()
        before = run.pids()
        os.kill(zygote, signal.SIGKILL)
        while not losses:
            run.wait(0.1)
        assert (losses[0].node, losses[0].reason) == ("zygote", "was killed by SIGKILL")
        assert run.pids() == before, "no node is lost with it"
        goes_on(run, metrics, "actor/0")
        nodes = [psutil.Process(pid) for pid in run.pids().values()]
    assert [loss.node for loss in losses] == ["zygote", "actor/0"]
    assert not psutil.wait_procs(nodes, timeout=5.0)[1]


def test_a_zygote_that_was_never_needed_is_not_waited_for() -> None:
    zygote, began = Zygote(), time.monotonic()  # takes seconds to import what nodes need
    zygote.close()
    assert time.monotonic() - began < 1.0


def test_a_zygote_that_was_stopped_is_replaced_when_it_is_needed() -> None:
    losses: list[Loss] = []
    with launch(small_program(actors=2), "local", supervisor=Supervisor(on_loss=losses.append)) as run:
        metrics = learning(run)
        os.kill(psutil.Process(run.pids()["actor/0"]).ppid(), signal.SIGSTOP)
        goes_on(run, metrics, "actor/0")
    assert {loss.node for loss in losses} == {"zygote", "actor/0"}


@pytest.mark.slow
def test_killing_actors_again_and_again_does_not_end_a_run(runtime: str) -> None:
    with launch(small_program(actors=2), runtime) as run:
        metrics = learning(run)
        for index in range(6):
            victim = f"actor/{index % 2}"
            while victim not in run.pids():
                run.wait(0.1)
            os.kill(run.pids()[victim], signal.SIGKILL)
            run.wait(1.0)
        before = env_steps(metrics)
        run.wait(8.0)
        assert env_steps(metrics) > before
        assert run.supervisor.restarts.total() == 6


# ---- the parent


@pytest.fixture
def files() -> set[Path]:
    return temporary_files()


@pytest.fixture(params=["local", RAY])
def victim(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A run of its own, learning, with its own Ray where it needs one."""
    if request.param == "ray":
        pytest.importorskip("ray")
    process = subprocess.Popen(
        [sys.executable, str(VICTIM), request.param], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All descendants of a run that learns."""
    assert process.stdout is not None
    nodes = json.loads(process.stdout.readline())
    descendants = psutil.Process(process.pid).children(recursive=True)
    assert {child.pid for child in descendants} >= set(nodes.values())
    return descendants


def assert_gone(processes: list[psutil.Process], files: set[Path]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5.0)
    assert not alive
    assert temporary_files() <= files


def test_nobody_outlives_a_killed_parent_by_five_seconds(files: set[Path], victim: subprocess.Popen[str]) -> None:
    processes = family(victim)
    os.kill(victim.pid, signal.SIGKILL)
    assert_gone(processes, files)


def test_an_interrupt_from_the_keyboard_ends_all(files: set[Path], victim: subprocess.Popen[str]) -> None:
    processes = family(victim)
    os.killpg(victim.pid, signal.SIGINT)  # as a terminal does, to the whole group
    assert victim.wait(15.0) == -signal.SIGINT, "it unwinds, and ends as Python does"
    assert_gone(processes, files)


@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_nobody_outlives_a_parent_that_was_told_to_end(
    files: set[Path], victim: subprocess.Popen[str], death: signal.Signals
) -> None:
    processes = family(victim)
    os.kill(victim.pid, death)
    victim.wait(15.0)
    assert_gone(processes, files)


def sharded_program() -> Program:
    options: dict[str, Any] = {"actors": 2, "shards": 2, "envs_per_actor": 4, "rows": 4, "hidden": (8,), "batch": 8}
    cfg = apex_dqn.Config(env="CartPole-v1", learning_starts=16, **options)
    return apex_dqn.program(cfg, envs.describe("CartPole-v1"), Settings(evaluate=False))


def test_a_killed_replay_shard_costs_its_own_items_and_comes_back(runtime: str) -> None:
    with launch(sharded_program(), runtime) as run:
        metrics = learning(run)
        old = run.pids()["replay/0"]
        os.kill(old, signal.SIGKILL)
        while run.pids().get("replay/0", old) == old:
            run.wait(0.02)
        before = metrics.snapshot()["counts"]["learner_steps"]
        replay, deadline = run.client(Handle("replay")), time.monotonic() + 60.0
        while (
            replay.info()["transitions"]["dead_shards"] or metrics.snapshot()["counts"]["learner_steps"] < before + 20
        ):
            run.wait(0.1)
            assert time.monotonic() < deadline, "the run does not go on with both shards"
        assert {name: count for name, count in run.supervisor.restarts.items() if count} == {"replay/0": 1}
