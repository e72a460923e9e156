"""How much of everything a target needs: first by adding up, then by simulating until the target is met."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from shoal.planning.costs import Costs, Layout
from shoal.planning.program import Outcome, simulate

LOAD = 0.85  # the share of its time that anything is planned to be busy
FULL = 0.95  # from which on it counts as what holds the rest up
NEAR = 0.99  # of the target counts as reached
MOST_ROUNDS = 16  # simulations of a plan
MOST_LEARNERS = 64
MOST_NODES = 200_000  # that are simulated
GAIN = 0.02  # that another learner must bring


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The target, the machines, and what was given and is not to be changed."""

    rate: float  # environment steps per second
    cores: int
    network: float  # bytes per second, each way
    machines: int | None = None
    actors: int | None = None
    learners: int | None = None
    shards: int | None = None
    servers: int | None = None


@dataclass(frozen=True)
class Limit:
    """Something that can be full, and the rate at which it would be."""

    what: str
    rate: float
    busy: float


@dataclass(frozen=True)
class Plan:
    layout: Layout
    outcome: Outcome
    limits: tuple[Limit, ...]  # the first is full first
    reached: bool
    memory: tuple[float, ...]  # bytes of each machine


def make_plan(costs: Costs, wanted: Wanted) -> Plan:
    """The smallest of what was tried that reaches the target; where nothing does, the one that comes nearest."""
    sizes = _first_guess(costs, wanted)
    best: Plan | None = None
    before = 0.0  # the rate when there were fewer actors
    for _ in range(MOST_ROUNDS):
        layout = _layout(costs, wanted, sizes)
        outcome = simulate(costs, layout)
        reached = outcome.rate >= NEAR * wanted.rate
        plan = Plan(layout, outcome, limits_of(costs, layout, outcome), reached, memory_of(costs, layout))
        if best is None or reached or outcome.rate > best.outcome.rate * (1 + GAIN):
            best = plan
        if reached:
            break
        larger = _larger(costs, wanted, sizes, plan)
        if larger is None or larger.actors > MOST_NODES:
            break
        if larger.actors > sizes.actors:
            if outcome.rate < before * (1 + GAIN):  # the last ones brought nothing
                break
            before = outcome.rate
        sizes = larger
    assert best is not None
    return best


@dataclass(frozen=True)
class _Sizes:
    actors: int
    learners: int
    shards: int
    servers: int
    machines: int


def _first_guess(costs: Costs, wanted: Wanted) -> _Sizes:
    actors = wanted.actors or max(1, math.ceil(wanted.rate * _row_seconds(costs) / costs.envs))
    learners = wanted.learners or _learners(costs, wanted.rate, actors)
    shards = wanted.shards or 1
    if wanted.shards is None and costs.family in ("replay", "gradients"):
        shards = min(actors, max(1, math.ceil(_service_cores(costs, wanted.rate, actors) / LOAD)))
    servers = 0
    if costs.central:
        servers = wanted.servers or min(actors, max(1, math.ceil(_server_cores(costs, wanted.rate, actors) / LOAD)))
    machines = wanted.machines or 1
    return _enough_machines(costs, wanted, _Sizes(actors, learners, shards, servers, machines))


def _row_seconds(costs: Costs) -> float:
    seconds = costs.row_seconds
    if costs.central:
        seconds += costs.answer_wait + costs.answer_cpu + costs.answer_beside + costs.answer_each * costs.envs
    return seconds


def _updates(costs: Costs, rate: float, actors: int) -> float:
    """Per second, for so many steps; where learners go at their own pace, as many as one can make."""
    steps = costs.steps_per_update(actors)
    return rate / steps if steps else 1.0 / max(1e-9, sum(costs.update_seconds(actors, 1)))


def _learners(costs: Costs, rate: float, actors: int) -> int:
    """As few as keep up; of rounds, in half of the time. Where none do, as many as bring something."""
    steps = costs.steps_per_update(actors)
    if steps is None:
        return 1
    wanted = rate / steps * (2.0 if costs.family == "rounds" else 1 / LOAD)
    for count in range(1, MOST_LEARNERS + 1):
        now, more = (1.0 / max(1e-12, sum(costs.update_seconds(actors, number))) for number in (count, count + 1))
        if now >= wanted or more < now * (1 + GAIN) or count >= costs.items_per_update(actors):
            return count
    return MOST_LEARNERS


def _service_cores(costs: Costs, rate: float, actors: int) -> float:
    times = actors if costs.family == "rounds" else 1
    return rate / costs.steps * costs.insert_cpu + _updates(costs, rate, actors) * costs.sample_cpu * times


def _server_cores(costs: Costs, rate: float, actors: int) -> float:
    """Of all inference servers together, where batches are as large as may be."""
    batch = min(actors * costs.envs, costs.answer_most or actors * costs.envs)
    return rate * (costs.answer_each + (costs.answer_cpu + costs.answer_beside) / max(1, batch))


def _enough_machines(costs: Costs, wanted: Wanted, sizes: _Sizes) -> _Sizes:
    """Machines with cores for all of it, unless their number was given."""
    if wanted.machines is not None:
        return sizes
    acting = min(wanted.rate / costs.envs * costs.row_cpu, sizes.actors)
    learning = sizes.learners if costs.family != "gradients" else 0
    if costs.update_beside:
        learning = 0
    serving = sizes.shards * min(1.0, _service_cores(costs, wanted.rate, sizes.actors) / sizes.shards)
    answering = sizes.servers if not costs.answer_beside else 0
    nodes = sizes.actors + sizes.learners + sizes.shards + sizes.servers
    usable = wanted.cores * costs.together * LOAD  # costs are those of a core that is busy alone
    needed = math.ceil((acting + learning + serving + answering + costs.idle * nodes) / usable)
    return dataclasses.replace(sizes, machines=max(sizes.machines, needed, 1))


def _layout(costs: Costs, wanted: Wanted, sizes: _Sizes) -> Layout:
    """Actors in proportion to the cores that learners and services leave."""
    layout = Layout(
        cores=wanted.cores,
        network=wanted.network,
        actors=(0,) * sizes.machines,
        learners=sizes.learners if costs.family != "gradients" else 0,
        shards=sizes.shards,
        servers=sizes.servers,
    )
    homes, busy = layout.homes(), [1.0] * layout.learners
    if costs.update_beside:
        busy = [0.0] * layout.learners
    busy += [min(1.0, _service_cores(costs, wanted.rate, sizes.actors) / sizes.shards)] * sizes.shards
    busy += [0.0 if costs.answer_beside else 1.0] * sizes.servers
    free = [
        max(0.0, wanted.cores - sum(cost for home, cost in zip(homes, busy) if home == place))
        for place in range(sizes.machines)
    ]
    if not sum(free):
        free = [1.0] * sizes.machines
    return dataclasses.replace(layout, actors=_shares(sizes.actors, free))


def _shares(count: int, weights: list[float]) -> tuple[int, ...]:
    """So many, divided by weights: the largest remainders get the rest."""
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [math.floor(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda place: shares[place] - exact[place])
    for place in order[: count - sum(shares)]:
        shares[place] += 1
    return tuple(shares)


def _larger(costs: Costs, wanted: Wanted, sizes: _Sizes, plan: Plan) -> _Sizes | None:
    """More of what holds the rest up; None where that cannot be had."""
    outcome = plan.outcome
    factor = min(4.0, wanted.rate / max(1e-9, outcome.rate))
    services, servers = max(outcome.services, default=0.0), max(outcome.servers, default=0.0)
    if costs.steps_per_update(sizes.actors) is not None and outcome.learner > FULL and costs.family != "rounds":
        if wanted.learners is not None or sizes.learners >= min(MOST_LEARNERS, costs.items_per_update(sizes.actors)):
            return None
        now, more = (sum(costs.update_seconds(sizes.actors, count)) for count in (sizes.learners, sizes.learners + 1))
        if more > now * (1 - GAIN):
            return None
        grown = dataclasses.replace(sizes, learners=sizes.learners + 1)
    elif services > FULL:
        if wanted.shards is not None or costs.family not in ("replay", "gradients") or sizes.shards >= sizes.actors:
            return None
        grown = dataclasses.replace(sizes, shards=sizes.shards + 1)
    elif servers > FULL:
        if wanted.servers is not None or sizes.servers >= sizes.actors:
            return None
        grown = dataclasses.replace(
            sizes, servers=min(sizes.actors, max(sizes.servers + 1, math.ceil(sizes.servers * factor)))
        )
    elif max(outcome.cores) > FULL:
        if wanted.machines is not None:
            return None
        grown = dataclasses.replace(
            sizes, machines=max(sizes.machines + 1, math.ceil(sizes.machines * min(factor, 1.5)))
        )
    elif wanted.actors is not None or max([*outcome.sent, *outcome.received]) > FULL * wanted.network:
        return None
    else:
        grown = dataclasses.replace(sizes, actors=max(sizes.actors + 1, math.ceil(sizes.actors * factor)))
    return _enough_machines(costs, wanted, grown)


# ---- what it comes to


def limits_of(costs: Costs, layout: Layout, outcome: Outcome) -> tuple[Limit, ...]:
    """What would be full at which rate, the first one first; of actors there can always be more."""
    found: list[tuple[str, float]] = []
    if costs.steps_per_update(layout.all_actors) is not None:  # else it is busy all the time, and holds nobody up
        found.append((f"learner{'s' if layout.learners > 1 else ''}", outcome.learner))
    service = {"replay": "replay", "gradients": "gradient service"}.get(costs.family, "queue")
    found.append((service, max(outcome.services, default=0.0)))
    found.append(("inference servers", max(outcome.servers, default=0.0)))
    homes = set(layout.homes()) or {0}
    for what, places in (
        ("cores beside the learner", sorted(homes)),
        ("cores of the actors' machines", [place for place in range(layout.machines) if place not in homes]),
    ):
        found.append((what, max((outcome.cores[place] for place in places), default=0.0)))
    found.append(("network out of a machine", max(outcome.sent) / layout.network))
    found.append(("network into a machine", max(outcome.received) / layout.network))
    limits = [Limit(what, outcome.rate / busy if busy > 1e-6 else math.inf, busy) for what, busy in found]
    return tuple(sorted((limit for limit in limits if limit.busy > 1e-6), key=lambda limit: limit.rate))


def memory_of(costs: Costs, layout: Layout) -> tuple[float, ...]:
    """Bytes of each machine."""
    found = [count * costs.actor_memory for count in layout.actors]
    kinds = [costs.learner_memory] * layout.learners
    kinds += [costs.service_memory + costs.stored_bytes / max(1, layout.shards)] * layout.shards
    kinds += [costs.server_memory] * layout.servers
    for place, size in zip(layout.homes(), kinds):
        found[place] += size
    return tuple(found)
