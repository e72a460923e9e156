"""Two policies in one program, each with its own learner, weights and table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared_actors
from starting import Start, wait_until

from shoal import envs
from shoal.algorithms import apex_dqn, impala
from shoal.checkpoints import Checkpoints
from shoal.experiment.bitwise import checkpoints_by_updates, differences
from shoal.experiment.training import resume, train
from shoal.loops.wiring import Settings, Wiring
from shoal.program import Handle, Program
from shoal.replay import Table, rollout
from shoal.runtime.local.run import LocalRun
from shoal.types import Role
from shoal.versions import NONE, generation, number

CFG = impala.Config(
    env="CartPole-v1", preset="none", actors=2, envs_per_actor=2, hidden=(8,), unroll=4, batch=4, queue=8
)


def wire(wiring: Wiring[Any]) -> None:
    rollouts = wiring.add_replay(Table.queue("rollouts", CFG.queue))
    wiring.add_learners(impala.Impala, source=wiring.table_source(rollouts, CFG.batch))
    wiring.add_actors(impala.make_policy, writes=rollouts, pattern=rollout(CFG.unroll), rows=CFG.unroll)


def test_each_policy_has_its_own_learner_weights_table_and_numbers(two_runtimes: Start) -> None:
    env, settings = envs.describe("CartPole-v1"), Settings(evaluate=False)
    main = Wiring(CFG, env, settings)
    wire(main)
    wire(Wiring(CFG, env, settings, policy="blue", beside=main))
    program = main.program
    assert [node.name for node in program.leaders()] == ["learner", "blue/learner"]
    assert program.find(Role.WEIGHTS, "blue") == Handle("blue/weights")
    assert len(program.with_role(Role.METRICS)) == 1
    run = two_runtimes(program)
    metrics = run.client(Handle("metrics"))

    def counted(name: str) -> float:
        return float(metrics.snapshot()["counts"].get(name, 0))

    wait_until(run, lambda: counted("learner_steps") >= 3 and counted("blue/learner_steps") >= 3)
    wait_until(run, lambda: {"loss", "blue/loss"} <= set(metrics.snapshot()["values"]))
    versions = [run.client(Handle(name)).version() for name in ("weights", "blue/weights")]
    assert min(versions) > 0
    run.add(program.next_member("blue/actors"))
    wait_until(run, lambda: "blue/actor/2" in metrics.snapshot()["nodes"])


# ---- actors that hold both ------------------------------------------------------------------------------------------

CFG_OF_BOTH = shared_actors.Config(env="CartPole-v1")
LEARNERS, STORES = ("learner", "blue/learner"), ("weights", "blue/weights")


def both(**settings: Any) -> Program:
    return shared_actors.program(CFG_OF_BOTH, envs.describe("CartPole-v1"), Settings(eval_episodes=1, **settings))


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_actors_that_hold_both_feed_two_methods(two_runtimes: Start) -> None:
    """IMPALA and Ape-X DQN, each on its half of every actor's environments."""
    run = two_runtimes(both())
    metrics = run.client(Handle("metrics"))

    def counted(name: str) -> float:
        return float(metrics.snapshot()["counts"].get(name, 0))

    wait_until(run, lambda: counted("learner_steps") >= 20 and counted("blue/learner_steps") >= 20)
    wanted = {f"{own}{name}" for own in ("", "blue/") for name in ("loss", "actor_return", "eval_return", "staleness")}
    wait_until(run, lambda: wanted <= metrics.snapshot()["values"].keys())
    found = metrics.snapshot()
    assert "entropy" in found["values"], "of a policy gradient"
    assert "blue/entropy" not in found["values"]
    assert "blue/q_mean" in found["values"], "of Q-learning"
    assert "q_mean" not in found["values"]
    assert counted("trained_steps") > 0
    assert counted("blue/trained_steps") == 8 * counted("blue/learner_steps")
    assert {record.get("policy") for record in found["evaluations"]} == {None, "blue"}
    (first, one), (second, other) = (run.client(Handle(name)).newer(NONE) for name in STORES)
    assert min(number(first), number(second)) > 10
    assert one.keys() != other.keys(), "networks of two methods"
    policy = apex_dqn.make_policy(CFG_OF_BOTH.blue(), envs.describe("CartPole-v1"), seed=0)
    policy.load(other)  # each has what its own policy can take
    with pytest.raises((KeyError, ValueError, RuntimeError)):
        policy.load(one)
    run.add(run.program.next_member("actors"))
    wait_until(run, lambda: "actor/2" in metrics.snapshot()["nodes"])
    run.remove("actor/2")
    wait_until(run, lambda: "actor/2" not in metrics.snapshot()["nodes"])
    before = counted("learner_steps")
    wait_until(run, lambda: counted("learner_steps") > before + 20)


@pytest.mark.parametrize(("lost", "spared"), [LEARNERS, LEARNERS[::-1]])
def test_a_learner_that_is_killed_goes_on_and_the_other_is_not_touched(lost: str, spared: str) -> None:
    with LocalRun(both()) as run:
        clients = {name: run.client(Handle(name)) for name in STORES}
        of = dict(zip(LEARNERS, STORES))
        metrics = run.client(Handle("metrics"))

        def version(learner: str) -> int:
            return int(clients[of[learner]].version())

        wait_until(run, lambda: min(version(name) for name in LEARNERS) >= 20)
        run.kill(lost)
        before = version(spared)
        wait_until(run, lambda: generation(version(lost)) == 1 and number(version(lost)) >= 20)
        wait_until(run, lambda: version(spared) >= before + 20)
        assert generation(version(spared)) == 0, "it is in its first life"
        assert run.supervisor.restarts == {lost: 1}
        counts = metrics.snapshot()["counts"]
        own = {"learner": "", "blue/learner": "blue/"}
        assert counts.get(f"{own[spared]}lost_updates", 0) == 0


OPTIONS: dict[str, Any] = {"quiet": True, "eval_episodes": 1}


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_checkpoint_has_both_learners_and_a_resumed_run_goes_on_with_both(runtime: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(CFG_OF_BOTH, run_dir=str(run), runtime=runtime, stop_updates=40, **OPTIONS)
    assert (result.stopped_by, result.learner_steps) == ("updates", 40)
    newest, _ = Checkpoints(run / "checkpoints").newest()
    assert newest is not None
    assert [newest.part(name)["updates"] for name in ("learner", "blue-learner")] == [40, 40]
    assert newest.meta["policies"] == {"blue": 40}
    again = resume(run, quiet=True, stop_updates=60)
    assert (again.stopped_by, again.learner_steps) == ("updates", 60)
    last, _ = Checkpoints(run / "checkpoints").newest()
    assert last is not None
    assert [last.part(name)["updates"] for name in ("learner", "blue-learner")] == [60, 60]
    assert last.part("blue-learner")["learner"]["optimizer"] != newest.part("blue-learner")["learner"]["optimizer"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    counts = [row["counts"] for row in rows if row["kind"] == "progress"][-1]
    assert (counts["learner_steps"], counts["blue/learner_steps"]) == (60, 60)
    judged = {row["kind"] for row in rows if "eval_return" in row}
    assert judged == {"evaluation", "blue/evaluation"}, "the run is judged by the main one, the other is told beside it"
    assert again.eval_return == [row for row in rows if row["kind"] == "evaluation"][-1]["eval_return"]


def test_inline_both_go_on_to_the_last_bit(tmp_path: Path) -> None:
    options = {**OPTIONS, "runtime": "inline", "checkpoint_replay": True, "checkpoint_updates": 15}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(CFG_OF_BOTH, run_dir=str(whole), stop_updates=60, **options)
    train(CFG_OF_BOTH, run_dir=str(parts), stop_updates=60, **options)
    for path in sorted((parts / "checkpoints").iterdir())[2:]:
        shutil.rmtree(path)  # as if it had been killed after its second
    (parts / "summary.json").unlink()
    (parts / "weights.npz").unlink()
    resume(parts, quiet=True)
    found = [checkpoints_by_updates(path)[60] for path in (whole, parts)]
    assert not differences(found[0], found[1], (whole, parts), both())
