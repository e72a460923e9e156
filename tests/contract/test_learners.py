"""Several learners are one with a larger batch, stop together, and come back together when one is lost."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from learner_nodes import B, Batch, Case, Listening, Rank, batch, batch_for, make_learner, update
from starting import Start, start_on, wait_until

from shoal import envs
from shoal.algorithms import apex_dqn, appo, impala, ppo
from shoal.loops.wiring import Settings
from shoal.nets.weights import export_weights
from shoal.program import Handle, Program
from shoal.services.group import Group
from shoal.versions import NONE, make_version, number

UPDATES = 10
NORMALIZING = {"normalize_observations": True, "normalize_rewards": True}
CASES: list[Case] = [
    ("impala", {}),
    # one minibatch: which rows share a smaller one is drawn, and drawn otherwise for every learner
    ("ppo", {"minibatches": 1, "epochs": 2}),
    ("ppo", {"minibatches": 1, "epochs": 2, **NORMALIZING}),
    ("ppo", {"minibatches": 1, "epochs": 4, "target_kl": 0.3, "learning_rate": 1e-2}),
    ("appo", {"minibatches": 1, "epochs": 2, **NORMALIZING}),
    ("apex_dqn", {"target_every": 3}),
    ("apex_dqn", {"target_every": 3, "quantiles": 4}),
]


def trained_alone(case: Case) -> Batch:
    learner = make_learner(*case)
    for step in range(UPDATES):
        update(learner, batch_for(case[0], step))
    weights: Batch = export_weights(learner.network)
    return weights


def trained_together(start: Start, size: int, cases: list[Case]) -> list[list[Batch]]:
    """Per learner and case."""
    program = Program()
    group = program.add("group", Group, size)
    ranks = [program.add(f"rank/{i}", Rank, group, i, size, cases, UPDATES) for i in range(size)]
    run = start(program)
    wait_until(run, lambda: all(run.finished(rank) for rank in ranks), 90.0)
    return [run.client(rank).weights() for rank in ranks]


def test_learners_that_share_batches_equal_one_that_takes_them_whole(start: Start) -> None:
    for case, first, second in zip(CASES, *trained_together(start, 2, CASES)):
        begin = export_weights(make_learner(*case).network)
        assert max(np.abs(first[name] - begin[name]).max() for name in begin) > 1e-3, "nothing was learned"
        for name, expected in trained_alone(case).items():
            np.testing.assert_array_equal(first[name], second[name], err_msg=f"{case}: {name}")
            np.testing.assert_allclose(first[name], expected, rtol=1e-6, atol=1e-6, err_msg=f"{case}: {name}")


def test_a_learner_without_a_single_valid_row_changes_nothing() -> None:
    """The first environments' rows are mostly invalid: with a learner for each, some have none in some updates."""
    assert min(int(batch(step)["valid"][:-1, 0].sum()) for step in range(UPDATES)) == 0
    found = trained_together(partial(start_on, "inline"), B, CASES[:2])[0]
    for case, weights in zip(CASES, found):
        for name, expected in trained_alone(case).items():
            np.testing.assert_allclose(weights[name], expected, rtol=1e-6, atol=1e-6, err_msg=f"{case}: {name}")


def tiny(algorithm: Any, updates: int | None, **options: Any) -> Program:
    cfg = algorithm.Config(learners=2, envs_per_actor=4, unroll=4, hidden=(8,), **options)
    settings = Settings(evaluate=False, max_updates=updates)
    program: Program = algorithm.program(cfg, envs.describe("CartPole-v1"), settings)
    return program


PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "impala": (impala, {"batch": 5, "queue": 16}),
    "ppo": (ppo, {"actors": 2}),
    "appo": (appo, {"batch": 5, "queue": 16}),
    "ppo that acts ahead": (ppo, {"actors": 2, "act_ahead": True}),
}


def finishes(start: Start, name: str, updates: int) -> None:
    algorithm, options = PROGRAMS[name]
    run = start(tiny(algorithm, updates, **options))
    learners = [Handle("learner"), Handle("learner/1")]
    wait_until(run, lambda: all(run.finished(one) for one in learners), 60.0)
    version, _ = run.client(Handle("weights")).newer(NONE)
    assert number(version) == updates
    assert sum(run.supervisor.restarts.values()) == 0


def test_a_group_shares_prioritised_batches() -> None:
    options: dict[str, Any] = {"envs_per_actor": 4, "rows": 4, "hidden": (8,), "batch": 8, "learning_starts": 16}
    cfg = apex_dqn.Config(learners=2, **options)
    program = apex_dqn.program(cfg, envs.describe("CartPole-v1"), Settings(evaluate=False, max_updates=6))
    with start_on("inline", program) as run:
        learners = [Handle("learner"), Handle("learner/1")]
        wait_until(run, lambda: all(run.finished(one) for one in learners), 60.0)
        version, _ = run.client(Handle("weights")).newer(NONE)
        assert number(version) == 6


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_group_makes_exactly_the_updates_asked_for(name: str) -> None:
    finishes(partial(start_on, "inline"), name, 6)


def test_a_synchronous_group_makes_exactly_the_updates_asked_for_on_every_runtime(start: Start) -> None:
    finishes(start, "ppo", 6)


def survives(start: Start, name: str, victim: str) -> None:
    algorithm, options = PROGRAMS[name]
    run = start(tiny(algorithm, None, **options))
    weights = run.client(Handle("weights"))
    newest = NONE

    def reached(version: int) -> bool:
        nonlocal newest
        found = weights.newer(newest)
        newest = newest if found is None else int(found[0])
        return newest >= version

    def kept() -> int:
        """Updates in the newest snapshot, which is at most a few seconds old."""
        return int(weights.kept_snapshot("learner")["updates"])

    wait_until(run, lambda: reached(make_version(0, 20)) and kept() > 0, 60.0)
    before = kept()
    os.kill(run.pids()[victim], signal.SIGKILL)
    wait_until(run, lambda: reached(make_version(1, 0)), 90.0)
    assert number(newest) >= before > 0, "they did not start from nothing"
    goal = newest + 5
    wait_until(run, lambda: reached(goal), 60.0)
    assert run.supervisor.restarts["learner"] == run.supervisor.restarts["learner/1"] == 1


LOST = pytest.mark.parametrize(("name", "victim"), [("impala", "learner/1"), ("ppo", "learner"), ("appo", "learner/1")])


@LOST
def test_a_lost_learner_takes_the_group_along_and_all_go_on_from_the_last_snapshot(name: str, victim: str) -> None:
    with ExitStack() as stack:
        survives(lambda program: stack.enter_context(start_on("local", program)), name, victim)


@LOST
@pytest.mark.slow
def test_a_lost_learner_takes_the_group_along_on_every_runtime_with_processes(
    start_processes: Start, name: str, victim: str
) -> None:
    survives(start_processes, name, victim)


@pytest.mark.parametrize("machines", [("here", "here"), ("here", "there")], ids=["one machine", "several"])
def test_learners_meet_on_their_own_address_only(machines: tuple[str, str]) -> None:
    """Of one machine on its loopback interface; otherwise where their runtime says that their machines are reached,
    which on the local runtime is there too."""
    program = Program()
    group = program.add("group", Group, 2)
    ranks = [program.add(f"rank/{i}", Listening, group, i, 2, machine) for i, machine in enumerate(machines)]
    with start_on("local", program) as run:
        told = [run.client(rank).addresses() for rank in ranks]
    assert [{host for host, _ in addresses} for addresses in told] == [{"127.0.0.1"}, {"127.0.0.1"}]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere their sockets cannot be found")
def test_nobody_is_let_in_after_the_learners_have_met() -> None:
    """Torch keeps whoever calls: a stranger of the same machine could use up a learner's descriptors."""
    program = Program()
    group = program.add("group", Group, 2)
    ranks = [program.add(f"rank/{i}", Listening, group, i, 2, "here") for i in range(2)]
    with start_on("local", program) as run:
        told = [run.client(rank).addresses() for rank in ranks]
        assert all(told)
        for address in set().union(*told):
            with pytest.raises(TimeoutError):
                socket.create_connection(address, 0.3)
