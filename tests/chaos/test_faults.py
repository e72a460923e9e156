"""Faults of environments and of learning end a run in order, with the reason."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
from victim import small_program

from shoal.errors import UserError
from shoal.program import Handle, Program
from shoal.runtime import RunFailed, Supervisor, launch
from shoal.runtime.restarts import Loss

SMALL = ("--envs-per-actor", "2", "--batch", "2", "--queue", "4", "--unroll", "5", "--hidden", "8")


def train(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal", "train", "impala", *SMALL, "--stop-seconds", "60", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)


def test_a_run_whose_updates_are_not_finite_stops_and_says_so(tmp_path: Path) -> None:
    done = train(tmp_path, "--env", "CartPole-v1", "--reward-scale", "1e38", "--learning-rate", "1e30")
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert "Traceback" not in told, "what is a sentence needs none"
    assert "node 'learner' " in told
    assert "loss or gradient were not finite in 10 updates in a row" in told


class Broken:
    """Raises at every step, a little later each time it is asked when."""

    restart = True

    def step(self) -> None:
        raise RuntimeError("broken")


def test_restarts_back_off_and_the_traceback_is_shown_once() -> None:
    losses: list[Loss] = []
    times: list[float] = []

    def note(loss: Loss) -> None:
        losses.append(loss)
        times.append(time.monotonic())

    program = Program()
    program.add("broken", Broken)
    with (
        launch(program, "local", supervisor=Supervisor(max_failures=3, on_loss=note)) as run,
        pytest.raises(RunFailed, match="node 'broken' raised RuntimeError: broken, 4 times in a row; giving up"),
    ):
        run.wait(30.0)
    assert [loss.traceback is not None for loss in losses] == [True, False, False]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[0] >= 0.1
    assert gaps[1] >= 0.2


class Mistaken:
    """Finds out in its node what the user got wrong."""

    restart = True

    def step(self) -> None:
        raise UserError("--env is not what it should be: give another one.")


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_users_mistake_inside_a_node_is_told_once_and_ends_the_run(runtime: str) -> None:
    losses: list[Loss] = []
    program = Program()
    program.add("mistaken", Mistaken)
    with launch(program, runtime, supervisor=Supervisor(on_loss=losses.append)) as run:
        with pytest.raises(RunFailed) as caught:
            run.wait(30.0)
        assert not run.supervisor.restarts["mistaken"]
    assert str(caught.value) == caught.value.user_error == "--env is not what it should be: give another one."
    assert not losses


@pytest.mark.slow
@pytest.mark.ray
def test_a_broken_environment_on_ray_is_told_with_its_traceback(ray_cluster: str) -> None:
    program = Program()
    program.add("broken", Broken)
    with (
        launch(program, "ray", supervisor=Supervisor(max_failures=1)) as run,
        pytest.raises(RunFailed, match="'broken' raised RuntimeError: broken, 2 times in a row") as caught,
    ):
        run.wait(60.0)
    assert 'raise RuntimeError("broken")' in (caught.value.traceback or "")


@pytest.mark.slow
def test_a_run_goes_on_for_a_minute_without_growing() -> None:
    import psutil

    with launch(small_program(actors=2), "local") as run:
        metrics = run.client(Handle("metrics"))
        run.wait(15.0)
        before = {name: psutil.Process(pid).memory_info().rss for name, pid in run.pids().items()}
        run.wait(45.0)
        after = {name: psutil.Process(pid).memory_info().rss for name, pid in run.pids().items()}
        assert metrics.snapshot()["counts"]["learner_steps"] > 100
    assert all(after[name] - before[name] < 30 << 20 for name in before), (before, after)
