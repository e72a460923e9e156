"""The program as a simulation: actors, inference servers, replay services, learners and weights on machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from shoal.planning.costs import Costs, Layout
from shoal.planning.simulation import (
    Link,
    Machine,
    Process,
    Resume,
    Server,
    Signal,
    Simulation,
    Table,
    Wait,
    queue,
    replay,
)

PIECES = 4  # of a block, between which an actor waits: what computes beside it gets its turns
AHEAD = 1  # batches that lie ready while the next one is being fetched
FEWEST = 10  # blocks of an actor, and updates, in a window
AGREEMENT = 0.01  # of two windows, at which a rate counts as settled
MOST_EVENTS = 400_000  # after which it is taken as it is
ANSWER_BYTES = 8.0  # of an action, with what goes around it


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation came to, once it had settled."""

    rate: float  # environment steps per second
    updates: float  # per second
    waiting: float  # the share of its time in which an actor waits for the rest of the program
    learner: float  # shares of their time in which they are busy
    services: list[float] = field(default_factory=list)
    servers: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)  # of each machine
    sent: list[float] = field(default_factory=list)  # bytes per second, out of each machine
    received: list[float] = field(default_factory=list)
    seconds: float = 0.0  # that were simulated
    settled: bool = True


def simulate(costs: Costs, layout: Layout, seed: int = 0, most_events: int = MOST_EVENTS) -> Outcome:
    """Let the program go on, in windows each as long as all before, until the rates of two of them agree."""
    program = _Program(costs, layout, seed)
    simulation, cycle = program.simulation, costs.rows * costs.row_seconds
    window = FEWEST * max(cycle, sum(costs.update_seconds(layout.all_actors, layout.learners)), 1e-3)
    rate, settled, going = 0.0, False, True
    while going and not settled:
        begin = program.counts()
        going = simulation.run(simulation.now + window, most_events - simulation.events)
        end = program.counts()
        previous, rate = rate, (end.steps - begin.steps) / max(1e-12, end.now - begin.now)
        enough = end.updates - begin.updates >= FEWEST
        settled = enough and abs(rate - previous) <= AGREEMENT * rate
        window = max(window, simulation.now)
        going &= simulation.events < most_events
    return program.outcome(begin, end, settled)


@dataclass(frozen=True)
class _Counts:
    """Totals at one moment."""

    now: float
    steps: float
    updates: float
    waited: float
    learner: float
    services: list[float]
    servers: list[float]
    cores: list[float]
    sent: list[float]
    received: list[float]


class _Call:
    """An insert: under way, or done."""

    def __init__(self, done: bool = False) -> None:
        self.done, self.ended = done, Signal()

    def end(self) -> None:
        self.done = True
        self.ended.wake()


class _Program:
    def __init__(self, costs: Costs, layout: Layout, seed: int) -> None:
        self.costs, self.layout = costs, layout
        self.simulation = simulation = Simulation()
        homes = layout.homes()
        nodes = [own + homes.count(place) for place, own in enumerate(layout.actors)]
        self.machines = [
            Machine(simulation, max(0.05, layout.cores - costs.idle * count), costs.together) for count in nodes
        ]
        self.out = [Link(simulation, layout.network) for _ in nodes]
        self.into = [Link(simulation, layout.network) for _ in nodes]
        learners, shards = layout.learners, layout.shards
        self.learners = homes[:learners]
        self.shards = [
            (place, Server(simulation, self.machines[place])) for place in homes[learners : learners + shards]
        ]
        self.servers = [_Inference(self, place, rank) for rank, place in enumerate(homes[learners + shards :])]
        self.table = self._table()
        self.version, self.published = 0, Signal()
        self.versions = [0] * layout.machines  # that machines have
        self.arrived = [Signal() for _ in nodes]
        self.steps = self.updates = 0
        self.waited = self.learning = 0.0
        self._begin(np.random.default_rng(seed))

    def _begin(self, random: np.random.Generator) -> None:
        costs, layout, start = self.costs, self.layout, self.simulation.start
        cycle = costs.rows * costs.row_seconds
        places = [place for place, count in enumerate(layout.actors) for _ in range(count)]
        for number, place in enumerate(places):
            start(self._actor(place, number), float(random.uniform(0.0, cycle)))
        if costs.family != "gradients":
            batches = queue(AHEAD)
            start(self._fetcher(batches))
            start(self._learner(batches))
            for place in range(1, layout.machines):
                start(self._carrier(place))

    def _table(self) -> Table:
        costs = self.costs
        if costs.family == "replay":
            return replay(costs.ratio, costs.batch_items, 2 * costs.batch_items + costs.ratio * costs.block_items)
        return queue(costs.room if costs.family == "queue" else math.inf)

    # ---- between machines

    def _carry(self, sender: int, receiver: int, size: float) -> Process:
        """A message; on one machine it costs nothing beside what sender and receiver were measured with."""
        if sender == receiver:
            return
        cost = self.costs.call_cpu + self.costs.byte_cpu * size
        yield self.machines[sender].work(cost)
        yield self.out[sender].send(size)
        yield self.into[receiver].send(size)
        yield self.machines[receiver].work(cost)

    def _carrier(self, place: int) -> Process:
        """Brings a machine the newest weights, once for all who act there."""
        while True:
            if self.versions[place] == self.version:
                yield self.published.wait()
            newest = self.version
            yield from self._carry(self.learners[0], place, self.costs.weights_bytes)
            self.versions[place] = newest
            self.arrived[place].wake()

    # ---- acting

    def _actor(self, place: int, number: int) -> Process:
        costs, simulation = self.costs, self.simulation
        last = _Call(done=True)
        while True:
            acted, sender = self.versions[place], place
            if costs.central:
                server = self.servers[number % len(self.servers)]
                yield from self._ask_for_rows(place, server)
                sender = server.place
            else:
                for _ in range(PIECES):
                    yield simulation.delay((costs.row_wait + costs.row_late) * costs.rows / PIECES)
                    yield self.machines[place].work(costs.row_cpu * costs.rows / PIECES)
            self.steps += costs.steps
            begun = simulation.now
            if costs.family == "gradients":
                yield from self._push(place)
            else:
                call = _Call()
                simulation.start(self._insert(sender, number, call))
                awaited, last = (call if len(self.shards) > 1 else last), call  # of one service, the call before
                if not awaited.done:
                    yield awaited.ended.wait()
                while costs.family == "rounds" and self.versions[place] == acted:
                    yield self.arrived[place].wait()
            self.waited += simulation.now - begun

    def _ask_for_rows(self, place: int, server: _Inference) -> Process:
        costs, simulation = self.costs, self.simulation
        for _ in range(costs.rows):
            yield simulation.delay(costs.row_wait + costs.row_late)
            yield self.machines[place].work(costs.row_cpu)
            begun = simulation.now
            yield from self._carry(place, server.place, costs.request_bytes)
            yield server.ask
            yield from self._carry(server.place, place, ANSWER_BYTES * costs.envs)
            self.waited += simulation.now - begun

    def _insert(self, sender: int, number: int, call: _Call) -> Process:
        place, service = self.shards[number % len(self.shards)]
        yield from self._carry(sender, place, self.costs.block_bytes)
        yield service.call(self.costs.insert_cpu)
        yield self.table.put(self.costs.block_items)
        call.end()

    def _push(self, place: int) -> Process:
        """A gradient to the parts of the service, and the weights back."""
        costs, parts = self.costs, len(self.shards)
        for home, service in self.shards:
            yield from self._carry(place, home, costs.weights_bytes / parts)
            yield service.call(costs.insert_cpu / parts)
            yield from self._carry(home, place, costs.weights_bytes / parts)
        self.updates += 1

    # ---- learning

    def _fetcher(self, batches: Table) -> Process:
        costs, parts, actors = self.costs, len(self.shards), self.layout.all_actors
        blocks = actors if costs.family == "rounds" else 1
        size = costs.batch_bytes * blocks / parts / len(self.learners)
        while True:
            yield self.table.take(costs.items_per_update(actors))
            yield self.simulation.together(
                *(service.call(costs.sample_cpu * blocks / parts) for _, service in self.shards)
            )
            for home, _ in self.shards:
                for learner in self.learners:
                    yield from self._carry(home, learner, size)
            yield batches.put(1)

    def _learner(self, batches: Table) -> Process:
        """All of a group, which end an update together."""
        costs, simulation, count = self.costs, self.simulation, len(self.learners)
        seconds, beside = costs.update_seconds(self.layout.all_actors, count)
        if len(set(self.learners)) > 1:  # sums of gradients, around a ring
            beside += 2 * (count - 1) / count * costs.weights_bytes / self.layout.network
        while True:
            yield batches.take(1)
            begun = simulation.now
            yield simulation.together(*(self.machines[place].work(seconds) for place in self.learners))
            yield simulation.delay(beside)
            self.learning += simulation.now - begun
            self.updates += 1
            if costs.family == "rounds" or self.updates % costs.publish_every == 0:
                self.version += 1
                self.versions[0] = self.version
                self.published.wake()
                self.arrived[0].wake()

    # ---- what it comes to

    def counts(self) -> _Counts:
        return _Counts(
            now=self.simulation.now,
            steps=self.steps,
            updates=self.updates,
            waited=self.waited,
            learner=self.learning,
            services=[service.used() for _, service in self.shards],
            servers=[server.used() for server in self.servers],
            cores=[machine.used() / machine.cores for machine in self.machines],
            sent=[link.sent for link in self.out],
            received=[link.sent for link in self.into],
        )

    def outcome(self, begin: _Counts, end: _Counts, settled: bool) -> Outcome:
        seconds = max(1e-12, end.now - begin.now)

        def each(name: str) -> list[float]:
            return [(after - before) / seconds for before, after in zip(getattr(begin, name), getattr(end, name))]

        return Outcome(
            rate=(end.steps - begin.steps) / seconds,
            updates=(end.updates - begin.updates) / seconds,
            waiting=(end.waited - begin.waited) / seconds / self.layout.all_actors,
            learner=(end.learner - begin.learner) / seconds,
            services=each("services"),
            servers=each("servers"),
            cores=each("cores"),
            sent=each("sent"),
            received=each("received"),
            seconds=end.now,
            settled=settled,
        )


class _Inference:
    """Gathers requests as an inference server does, until there are enough or the first has waited, and answers."""

    def __init__(self, program: _Program, place: int, rank: int) -> None:
        costs, layout = program.costs, program.layout
        own = max(1, len(range(rank, layout.all_actors, layout.servers)))
        self._most = min(own, max(1, costs.answer_most // costs.envs)) if costs.answer_most else own
        self._simulation, self._costs, self.place = program.simulation, costs, place
        self._server = Server(program.simulation, program.machines[place])
        self._pending: list[tuple[float, Resume]] = []  # when each came
        self._answering = False
        self._look_number = 0  # of the newest time at which a batch may begin; older ones are void
        self.ask: Wait = self._ask
        self.used = self._server.used

    def _ask(self, resume: Resume) -> None:
        self._pending.append((self._simulation.now, resume))
        self._look()

    def _look(self) -> None:
        if self._answering or not self._pending:
            return
        left = self._pending[0][0] + self._costs.answer_wait - self._simulation.now
        if len(self._pending) >= self._most or left <= 1e-12:
            self._answer()
            return
        self._look_number += 1
        number = self._look_number
        self._simulation.after(left, lambda: self._look() if number == self._look_number else None)

    def _answer(self) -> None:
        batch, self._pending = self._pending[: self._most], self._pending[self._most :]
        self._answering = True

        def answered(_: object) -> None:
            self._answering = False
            for _, resume in batch:
                resume(None)
            self._look()

        costs = self._costs
        seconds = costs.answer_cpu + costs.answer_each * costs.envs * len(batch)
        self._server.call(seconds, costs.answer_beside)(answered)
