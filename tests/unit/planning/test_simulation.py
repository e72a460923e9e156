"""The simulation against closed forms: queues of which the mean wait is known, and what saturation comes to."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.planning.simulation import Link, Machine, Process, Server, Simulation, Wait, queue, replay

SERVICE = 0.01  # seconds of work, or of sending


def mean_time(load: float, begin: Wait, simulation: Simulation, arrivals: int = 20_000) -> float:
    """That a call takes, of many that come at random times and load what they call so much."""
    random = np.random.default_rng(1)
    times: list[float] = []

    def call() -> Process:
        came = simulation.now
        yield begin
        times.append(simulation.now - came)

    at = 0.0
    for gap in random.exponential(SERVICE / load, arrivals):
        at += float(gap)
        simulation.start(call(), at)
    simulation.run(at + 1e6)
    assert len(times) == arrivals
    return float(np.mean(times))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_link_is_an_m_d_1_queue(load: float) -> None:
    simulation = Simulation()
    link = Link(simulation, 1.0 / SERVICE)
    expected = SERVICE * (1 + load / (2 * (1 - load)))  # Pollaczek and Khinchine
    assert mean_time(load, link.send(1.0), simulation) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_a_server_is_an_m_d_1_queue(load: float) -> None:
    simulation = Simulation()
    server = Server(simulation, Machine(simulation, 1))
    expected = SERVICE * (1 + load / (2 * (1 - load)))
    assert mean_time(load, server.call(SERVICE), simulation) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_core_that_is_shared_takes_as_long_as_the_closed_form_says(load: float) -> None:
    """M/G/1 with processor sharing: the work divided by what is left of the core, whatever its distribution."""
    simulation = Simulation()
    machine = Machine(simulation, 1)
    assert mean_time(load, machine.work(SERVICE), simulation) == pytest.approx(SERVICE / (1 - load), rel=0.05)


def test_work_is_shared_evenly_and_nobody_has_more_than_a_core() -> None:
    simulation = Simulation()
    machine, ended = Machine(simulation, 2), []

    def work(name: str, seconds: float) -> Process:
        yield machine.work(seconds)
        ended.append((name, round(simulation.now, 9)))

    for name, seconds in (("short", 1.0), ("middle", 2.0), ("long", 4.0)):
        simulation.start(work(name, seconds))
    simulation.run(100.0)
    # three on two cores until "short" has done 1 s, then each has a core
    assert ended == [("short", 1.5), ("middle", 2.5), ("long", 4.5)]
    assert machine.used() == pytest.approx(7.0)


@pytest.mark.parametrize(("customers", "cores"), [(1, 1), (3, 2), (40, 1), (80, 4)])
def test_a_closed_loop_saturates_where_the_bounds_say(customers: int, cores: int) -> None:
    """Customers that wait Z and then need S of a core: at most one round in Z + S each, at most `cores`/S in all."""
    simulation, waits, works, rounds = Simulation(), 0.1, 0.01, [0]
    machine = Machine(simulation, cores)

    def customer() -> Process:
        while True:
            yield simulation.delay(waits)
            yield machine.work(works)
            rounds[0] += 1

    for number in range(customers):
        simulation.start(customer(), number * 0.0137 % waits)
    simulation.run(100.0)
    bound = min(customers / (waits + works), cores / works)
    assert 0.97 * bound <= rounds[0] / 100.0 <= bound * 1.001


def test_a_queue_holds_who_brings_more_than_there_is_room_for() -> None:
    simulation, table, order = Simulation(), queue(4), []

    def writer() -> Process:
        yield table.put(3)
        order.append(("put", simulation.now))
        yield table.put(3)
        order.append(("put", simulation.now))

    def reader() -> Process:
        yield simulation.delay(5.0)
        yield table.take(2)
        order.append(("taken", simulation.now))

    simulation.start(writer())
    simulation.start(reader())
    simulation.run(100.0)
    assert order == [("put", 0.0), ("put", 5.0), ("taken", 5.0)] or order == [
        ("put", 0.0),
        ("taken", 5.0),
        ("put", 5.0),
    ]
    assert (table.came, table.taken) == (6.0, 2.0)


@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_a_replay_keeps_samples_to_inserts(ratio: float) -> None:
    simulation, table = Simulation(), replay(ratio, least=10, error=2 * 8 + ratio * 4)

    def writer() -> Process:
        while True:
            yield simulation.delay(0.01)
            yield table.put(4)

    def reader() -> Process:
        while True:
            yield table.take(8)
            yield simulation.delay(0.02)

    simulation.start(writer())
    simulation.start(reader())
    simulation.run(200.0)
    assert table.taken / table.came == pytest.approx(ratio, rel=0.02)


def test_a_simulation_ends_when_nothing_is_left_or_events_are_used_up() -> None:
    simulation = Simulation()
    assert not simulation.run(1.0)

    def for_ever() -> Process:
        while True:
            yield simulation.delay(1e-3)

    simulation.start(for_ever())
    assert not simulation.run(1e9, most_events=100)
    assert simulation.events == 100
