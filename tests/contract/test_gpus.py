"""GPUs, all of them fakes: what is asked for reaches torch in the node's own process, on one machine and on Ray, and
learners that have one each add up by themselves and meet again."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_nodes import Adding, Seer
from starting import start_on, wait_until

import shoal
from shoal.algorithms import impala
from shoal.errors import UserError
from shoal.program import NodeDied, Program, Resources
from shoal.runtime import Run, RunFailed
from shoal.runtime.local.run import cool
from shoal.services.group import Group

GIB = 2**30
ASKED = {
    "whole": Resources(cpus=0.0, gpus=1.0, device="cuda"),
    "part": Resources(cpus=0.0, gpus=0.25, device="cuda"),
    "bounded": Resources(cpus=0.0, gpus=0.25, device="cuda", gpu_memory=6 * GIB),
}


def seers() -> tuple[Program, dict[str, Any]]:
    program = Program()
    handles = {name: program.group("seers").add(name, Seer) for name in ASKED}
    for name, resources in ASKED.items():
        program.place(name, resources)
    return program, handles


def test_a_part_of_a_gpu_bounds_its_memory_in_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cool()  # what was warmed up before knows nothing of the variable
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    program, handles = seers()
    with start_on("local", program) as run:
        told = {name: run.client(handle).told() for name, handle in handles.items()}
    cool()
    assert {one["visible"] for one in told.values()} == {"4,7"}
    assert [one["chosen"] for one in told.values()] == [0, 1, 0], "of what it can see, one after the other"
    assert [one["fractions"] for one in told.values()] == [{}, {1: 0.25}, {0: 0.25}]


@pytest.mark.ray
def test_on_ray_a_node_sees_the_gpu_that_it_asked_for(ray_cluster: str) -> None:
    program, handles = seers()
    with start_on("ray", program) as run:
        told = {name: run.client(handle).told() for name, handle in handles.items()}
    assert told["whole"]["visible"] != told["part"]["visible"] == told["bounded"]["visible"]
    assert {one["visible"] for one in told.values()} == {"0", "1"}
    assert [one["fractions"] for one in told.values()] == [{}, {0: 0.25}, {0: 0.25}]


@pytest.mark.ray
def test_a_head_without_a_gpu_sends_its_learner_to_one_and_is_told_where_there_is_none(
    ray_cluster: str, tmp_path: Path
) -> None:
    """Ray takes our word for two GPUs; the node finds out."""
    began = time.monotonic()
    cfg = impala.Config(env="CartPole-v1", device="cuda")
    with pytest.raises(UserError) as told:
        shoal.train(cfg, runtime="ray", run_dir=str(tmp_path / "run"), stop_updates=1)
    sentence = f"node 'learner' is to compute on 'cuda', which cannot be used on the machine {socket.gethostname()!r} ("
    assert str(told.value).startswith(sentence)
    assert time.monotonic() - began < 60.0
    assert not (tmp_path / "run").exists(), "nothing was learned, and nothing is left"


# ---- several learners


def adding(gpus: tuple[str, ...]) -> tuple[Program, list[Any]]:
    program = Program()
    group, size = program.add("group", Group, len(gpus)), len(gpus)
    return program, [
        program.group("learners").add(f"l/{rank}", Adding, group, rank, size, gpus) for rank in range(size)
    ]


def told(run: Run, ranks: list[Any]) -> list[tuple[int, int, bool]]:
    """Of each its life, sums and whether they are GPUs'; nothing while one of them is gone."""
    try:
        return [run.client(rank).told() for rank in ranks]
    except NodeDied:
        return [(-1, 0, False)]


def test_learners_with_a_gpu_each_add_up_there_and_meet_again_when_one_is_lost() -> None:
    program, ranks = adding(("a", "b"))
    with start_on("local", program) as run:
        wait_until(run, lambda: min(sums for _, sums, _ in told(run, ranks)) > 20)
        assert all(fast for _, _, fast in told(run, ranks))
        os.kill(run.pids()["l/1"], signal.SIGKILL)
        wait_until(run, lambda: run.supervisor.restarts["l/0"] == run.supervisor.restarts["l/1"] == 1)
        wait_until(run, lambda: all(lives == 1 and sums > 20 for lives, sums, _ in told(run, ranks)))


@pytest.mark.parametrize("gpus", [("a", "a"), ("a", ""), ("", "")], ids=["shared", "one", "none"])
def test_learners_without_a_gpu_each_add_up_by_gloo(gpus: tuple[str, ...]) -> None:
    program, ranks = adding(gpus)
    with start_on("local", program) as run:
        wait_until(run, lambda: min(sums for _, sums, _ in told(run, ranks)) > 5)
        assert not any(fast for _, _, fast in told(run, ranks))


def test_a_device_that_is_not_there_ends_the_run_with_its_sentence() -> None:
    program = Program()
    program.add("service", Group, 1)
    program.place("service", Resources(device="cuda"))
    with start_on("local", program) as run, pytest.raises(RunFailed, match="node 'service' is to compute on 'cuda'"):
        wait_until(run, lambda: False, 20.0)
