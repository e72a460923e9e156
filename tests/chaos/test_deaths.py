"""Processes are killed: nodes come back, what cannot come back is named, and nobody outlives the parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from victim import small_program

from leftovers import temporary_files
from shoal import envs
from shoal.algorithms import a3c, apex_dqn, ppo
from shoal.loops.wiring import Settings
from shoal.program import Handle, NodeDied, Program
from shoal.runtime import Run, Supervisor, launch
from shoal.runtime.local.zygote import Zygote
from shoal.runtime.restarts import Hang, Loss

VICTIM = Path(__file__).with_name("victim.py")
RAY = pytest.param("ray", marks=pytest.mark.ray)
SLOW_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)])
PATIENCE = {"local": 60.0, "ray": 240.0}  # seconds: Ray starts an interpreter for every node


@pytest.fixture(params=["local", SLOW_RAY])
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


def learning(run: Run) -> Any:
    """The metrics of a run that has begun to learn."""
    metrics = run.client(Handle("metrics"))
    deadline = time.monotonic() + 240.0
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
            assert time.monotonic() - began < PATIENCE[runtime], "the actor does not act again"
        assert runtime == "ray" or time.monotonic() - began < 5.0
        assert run.supervisor.restarts == {"actor/0": 1}


def counts(run: Run, metrics: Any) -> dict[str, float]:
    """What has been counted; while the metrics are on their way back they are waited for."""
    deadline = time.monotonic() + 240.0
    while True:
        try:
            found: dict[str, float] = metrics.snapshot()["counts"]
            return found
        except NodeDied:
            assert time.monotonic() < deadline, "the metrics do not come back"
            run.wait(0.1)


def goes_on(run: Run, metrics: Any, victim: str, updates: int = 20, death: signal.Signals = signal.SIGKILL) -> None:
    """Kill or stop a node; the run must bring it back and make further updates."""
    deadline = time.monotonic() + 240.0
    while victim not in run.pids():
        run.wait(0.02)
        assert time.monotonic() < deadline, f"{victim} is not there"
    old = run.pids()[victim]
    os.kill(old, death)
    while run.pids().get(victim, old) == old:
        run.wait(0.02)
        assert time.monotonic() < deadline, f"{victim} does not come back"
    before = counts(run, metrics).get("learner_steps", 0)
    while counts(run, metrics).get("learner_steps", 0) < before + updates:
        run.wait(0.1)
        assert time.monotonic() < deadline, f"without {victim} the run does not go on learning"
    assert run.supervisor.restarts[victim] >= 1


def grouped_program() -> Program:
    return small_program(actors=2, learners=2)


def central_program() -> Program:
    return small_program(actors=2, inference="central")


def two_actors() -> Program:
    return small_program(actors=2)


def sharded_program() -> Program:
    options: dict[str, Any] = {"actors": 2, "shards": 2, "envs_per_actor": 4, "rows": 4, "hidden": (8,), "batch": 8}
    cfg = apex_dqn.Config(env="CartPole-v1", learning_starts=16, **options)
    return apex_dqn.program(cfg, envs.describe("CartPole-v1"), Settings(evaluate=False))


def workers_program(**options: Any) -> Program:
    cfg = a3c.Config(env="CartPole-v1", actors=2, envs_per_actor=2, unroll=5, hidden=(8,), **options)
    return a3c.program(cfg, envs.describe("CartPole-v1"), Settings(evaluate=False))


def workers_in_step() -> Program:
    return workers_program(synchronous=True)


def actors_in_step() -> Program:
    """Actors wait for the weights that their last rollouts have made."""
    cfg = ppo.Config(env="CartPole-v1", actors=2, envs_per_actor=4, unroll=8, hidden=(8,), epochs=1)
    return ppo.program(cfg, envs.describe("CartPole-v1"), Settings(evaluate=False))


@pytest.mark.parametrize(
    ("described", "victims"),
    [
        (two_actors, ["metrics", "weights", "learner", "replay"]),
        (sharded_program, ["replay"]),
        (workers_program, ["gradients", "learner", "metrics", "weights"]),
        (actors_in_step, ["replay", "actor/0", "replay"]),
        pytest.param(workers_in_step, ["gradients", "worker/0", "learner"], marks=pytest.mark.slow),
        pytest.param(central_program, ["inference/0"], marks=pytest.mark.slow),
        pytest.param(grouped_program, ["learner/1", "learner", "group"], marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_whoever_is_killed(runtime: str, described: Callable[[], Program], victims: list[str]) -> None:
    losses: list[Loss] = []
    with launch(described(), runtime, supervisor=Supervisor(on_loss=losses.append)) as run:
        metrics = learning(run)
        for victim in victims:
            goes_on(run, metrics, victim)
    assert [loss.node for loss in losses] == victims, "those who only suffered from it are not blamed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("described", "victims"),
    [
        (two_actors, ["metrics", "weights", "learner", "replay", "actor/0"]),
        (sharded_program, ["replay", "replay/0"]),
        (workers_program, ["gradients", "learner", "worker/0"]),
        (actors_in_step, ["replay", "actor/0", "learner", "weights"]),
        (workers_in_step, ["gradients", "worker/0"]),
        (central_program, ["inference/0"]),
        (grouped_program, ["learner/1", "group"]),
    ],
)
def test_a_run_goes_on_whoever_is_stopped(described: Callable[[], Program], victims: list[str]) -> None:
    hangs: list[Hang] = []
    with launch(described(), "local", supervisor=Supervisor(hang_seconds=3.0, on_hang=hangs.append)) as run:
        metrics = learning(run)
        for victim in victims:
            goes_on(run, metrics, victim, death=signal.SIGSTOP)
            run.wait(2.0)  # it gives signs of life again
    assert [hang.node for hang in hangs] == victims, "nobody else was taken for one that hangs"
    assert all(hang.replaced for hang in hangs)


def test_actors_outlive_services_that_are_killed() -> None:
    """They wait for a replay and go on with old weights: what they are in the middle of is not lost with others."""
    with launch(two_actors(), "local") as run:
        metrics = learning(run)
        before = {name: pid for name, pid in run.pids().items() if name.startswith("actor/")}
        for victim in ("metrics", "weights", "replay"):
            goes_on(run, metrics, victim)
        assert {name: pid for name, pid in run.pids().items() if name.startswith("actor/")} == before
        assert counts(run, metrics).get("lost_episodes", 0) == 0


def test_counts_do_not_fall_when_the_metrics_are_killed_under_an_experiment(tmp_path: Path) -> None:
    small = {"envs_per_actor": 4, "unroll": 5, "batch": 4, "queue": 8, "hidden": (8,)}
    command = [sys.executable, "-m", "shoal", "train", "impala", "--run-dir", str(tmp_path / "run"), "--stop-steps"]
    words = [word for name, value in small.items() for word in (f"--{name.replace('_', '-')}", str(value).strip("(),"))]
    process = subprocess.Popen([*command, "30000", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    kill_nodes_named(process, "metrics", tmp_path / "run" / "metrics.jsonl")
    assert process.wait(120.0) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row["counts"].get("env_steps", 0) for row in rows if row["kind"] == "progress"]
    assert [row["node"] for row in rows if row["kind"] == "loss"] == ["metrics"]
    assert steps == sorted(steps)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 30_000 <= summary["env_steps"] < 30_000 + 2 * 4 * 5, "none is lost, none is counted twice"


def kill_nodes_named(process: subprocess.Popen[str], name: str, rows: Path) -> None:
    """Once the run has learned for a while."""
    deadline = time.monotonic() + 60.0
    while not rows.exists() or '"learner_steps": ' not in rows.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found = [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == name]
    for child in found:
        child.kill()
    assert found


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


@pytest.mark.parametrize("victim", ["local", SLOW_RAY], indirect=True)  # SIGTERM on Ray: test_ray_clusters.py
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
