"""Programs that are simulated and sized: what saturates, what a target needs, and what is kept as it was given."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.planning.costs import Costs, Layout
from shoal.planning.program import simulate
from shoal.planning.sizing import Wanted, make_plan, memory_of

GIGABIT = 1e9 / 8
COSTS = Costs(
    family="queue",
    envs=4,
    rows=10,
    row_cpu=1e-3,
    row_wait=9e-3,
    block_bytes=4_000,
    block_items=4,
    insert_cpu=1e-4,
    sample_cpu=1e-4,
    batch_items=16,
    batch_bytes=16_000,
    room=64,
    ratio=1.0,
    stored_bytes=0.0,
    update_cpu=4e-3,
    update_fixed=0.25,
    weights_bytes=1e5,
    actor_memory=50e6,
    learner_memory=200e6,
    service_memory=100e6,
    server_memory=150e6,
    idle=0.0,
    together=1.0,
    call_cpu=1e-5,
    byte_cpu=1e-9,
)


def layout(*actors: int, cores: int = 4, network: float = 10 * GIGABIT, **counts: int) -> Layout:
    return Layout(cores=cores, network=network, actors=actors, **counts)


def changed(**changes: object) -> Costs:
    return dataclasses.replace(COSTS, **changes)  # type: ignore[arg-type]


def test_actors_that_nothing_holds_up_make_their_rows_one_after_the_other() -> None:
    outcome = simulate(COSTS, layout(3))
    assert outcome.rate == pytest.approx(3 * 4 / 0.01, rel=0.02)
    assert outcome.updates == pytest.approx(outcome.rate / (16 / 4 * 40), rel=0.03)
    assert outcome.waiting < 0.01
    assert outcome.settled


def test_a_learner_that_cannot_keep_up_holds_actors_to_its_rate() -> None:
    outcome = simulate(changed(update_cpu=0.4), layout(8))
    assert outcome.rate == pytest.approx(16 / 4 * 40 / 0.4, rel=0.03)
    assert outcome.learner > 0.97
    assert outcome.waiting > 0.5


def test_cores_that_are_full_give_what_they_have() -> None:
    """Every step costs an actor, the queue and the learner a known part of a core; actors that are held up by the
    queue move in waves, which leaves a little of the cores idle."""
    outcome = simulate(COSTS, layout(100, cores=2))
    a_step = 1e-3 / 4 + 1e-4 / 40 + (1e-4 + 4e-3) / 160
    assert outcome.cores == [pytest.approx(1.0, abs=0.08)]
    assert outcome.rate == pytest.approx(2 / a_step, rel=0.08)


def test_a_network_that_is_full_gives_what_it_has() -> None:
    costs = changed(block_bytes=1e6, batch_bytes=4e6, weights_bytes=0.0)
    outcome = simulate(costs, layout(0, 30, 30, network=GIGABIT))
    assert max(outcome.received) == pytest.approx(GIGABIT, rel=0.05)
    assert outcome.rate == pytest.approx(GIGABIT / 1e6 * 40, rel=0.05)


def test_weights_cross_once_for_every_machine_and_version() -> None:
    outcome = simulate(changed(block_bytes=0.0), layout(0, 10, 10))
    assert outcome.sent[0] == pytest.approx(2 * outcome.updates * 1e5, rel=0.05)


def test_rounds_take_acting_and_learning_in_turns() -> None:
    costs = changed(family="rounds", batch_items=4, update_cpu=5e-3)  # of each actor's block
    outcome = simulate(costs, layout(4))
    a_round = 10 * 0.01 + 1e-4 + 4 * 1e-4 + 4 * 5e-3
    assert outcome.rate == pytest.approx(4 * 40 / a_round, rel=0.03)


def test_a_replay_of_its_own_pace_keeps_the_learner_busy_and_holds_nobody() -> None:
    outcome = simulate(changed(family="replay", ratio=0.0, block_items=40, batch_items=32), layout(3))
    assert outcome.rate == pytest.approx(3 * 4 / 0.01, rel=0.02)
    assert outcome.learner > 0.95


def test_gradients_are_answered_before_the_next_block() -> None:
    costs = changed(family="gradients", insert_cpu=2e-3)
    outcome = simulate(costs, layout(4, learners=0))
    assert outcome.updates == pytest.approx(4 / (0.1 + 2e-3), rel=0.03)
    assert max(simulate(costs, layout(200, cores=64, learners=0)).services) > 0.97


def test_inference_servers_answer_in_batches() -> None:
    """One batch of all actors at a time, as each of them waits for its answer."""
    costs = changed(central=True, row_cpu=1e-5, row_wait=0.0, answer_cpu=2e-3, answer_each=1e-4, answer_wait=1e-3)
    one, two = (simulate(costs, layout(8, cores=16, servers=count)).rate for count in (1, 2))
    assert one == pytest.approx(8 * 4 / (2e-3 + 32 * 1e-4 + 1e-5), rel=0.05)
    assert two == pytest.approx(8 * 4 / (2e-3 + 16 * 1e-4 + 1e-5), rel=0.05)


def wanted(rate: float, **given: int) -> Wanted:
    return Wanted(**{"rate": rate, "cores": 8, "network": 10 * GIGABIT, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [100.0, 5_000.0, 30_000.0])
def test_a_plan_reaches_its_target_without_much_more(rate: float) -> None:
    plan = make_plan(COSTS, wanted(rate))
    assert plan.reached
    least = rate * 0.01 / 4  # actors that nothing holds up
    assert least * 0.99 <= plan.layout.all_actors <= max(2, 1.3 * least)
    assert max(plan.outcome.cores) <= 1.0


def test_what_was_given_is_kept_and_what_is_full_is_told() -> None:
    plan = make_plan(changed(update_cpu=0.1), wanted(1e5, learners=1))
    assert not plan.reached
    assert plan.layout.learners == 1
    assert plan.limits[0].what == "learner"
    assert plan.outcome.rate == pytest.approx(160 / 0.1, rel=0.05)
    few = make_plan(COSTS, wanted(1e5, actors=2))
    assert (few.reached, few.layout.all_actors) == (False, 2)
    crowded = make_plan(COSTS, wanted(1e5, machines=1))
    assert (crowded.reached, crowded.layout.machines) == (False, 1)
    assert crowded.limits[0].what.startswith("cores")


def test_more_learners_shards_and_servers_are_taken_where_one_is_too_slow() -> None:
    plan = make_plan(changed(update_cpu=0.05, update_fixed=0.05), wanted(1e4))
    assert plan.reached
    assert plan.layout.learners >= 4
    shards = changed(family="replay", insert_cpu=5e-3, block_items=40, batch_items=256, ratio=0.5)
    plan = make_plan(shards, wanted(2e4))
    assert plan.reached
    assert plan.layout.shards >= 3
    servers = changed(central=True, row_cpu=1e-4, row_wait=0.0, answer_cpu=1e-3, answer_each=1e-4)
    plan = make_plan(servers, wanted(3e4))
    assert plan.reached
    assert plan.layout.servers >= 3


def test_memory_is_that_of_who_is_there() -> None:
    costs = changed(family="replay", stored_bytes=8e9)
    found = memory_of(costs, layout(2, 5, cores=3, shards=2))
    assert found == (2 * 50e6 + 200e6 + 2 * (100e6 + 4e9), 5 * 50e6)


def test_a_hundred_thousand_environments_are_planned_in_seconds() -> None:
    plan = make_plan(changed(envs=64, row_wait=0.6, row_cpu=5e-3, block_items=64, batch_items=256), wanted(1.6e5))
    assert plan.layout.all_actors * 64 >= 90_000
    assert plan.outcome.seconds > 0
