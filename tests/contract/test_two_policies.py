"""Two policies in one program, each with its own learner, weights and table."""

from __future__ import annotations

from typing import Any

from starting import Start, wait_until

from shoal import envs
from shoal.algorithms import impala
from shoal.loops.wiring import Settings, Wiring
from shoal.program import Handle
from shoal.replay import Table, rollout
from shoal.types import Role

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
