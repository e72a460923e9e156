"""What the parts of a program cost, as the simulation takes it: seconds of a core, seconds of waiting, bytes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["queue", "rounds", "replay", "gradients"]

# Fitted by hand, as docs/planning.md tells: its checks are new runs, but not of configurations that nobody had seen.
IDLE = 0.003  # seconds of a core that a node takes in a second in which it does nothing
TOGETHER = 0.75  # how fast a core is when all of them are busy, beside one that is busy alone
# Between machines, with TLS: a quarter of what a call takes there and back, half of what a byte takes (decision 0025).
CALL_CPU = 6e-5  # seconds of a core at each end of a message
BYTE_CPU = 1.6e-9  # and for each byte of it


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of one program with its config: `envs` environments an actor, `rows` rows between two messages of it."""

    family: Family
    # ---- acting
    envs: int
    rows: int
    row_cpu: float  # of an actor for a row of all its environments, with its share of sending and of weights
    row_wait: float  # in which a row's environments wait for something that is no core
    row_late: float = 0.0  # what the trial took longer for a row than its simulation: waking up, turns, what is unknown
    block_bytes: float  # that an actor sends after `rows`
    # ---- what is between
    block_items: float  # that it completes by that
    insert_cpu: float  # of the service, for a block; of a gradient service, for a gradient
    sample_cpu: float  # of the service, for a batch
    batch_items: float  # of an update; of rounds, of one actor's block
    batch_bytes: float
    room: float  # items that a queue holds
    ratio: float  # how often an item of a replay is sampled; 0: as often as the learner can
    stored_bytes: float  # of a full replay
    # ---- learning
    update_cpu: float  # of one learner for a batch, all of it; of rounds, for one actor's block
    update_fixed: float  # the share of it that does not shrink when several learners share a batch
    update_beside: float = 0.0  # seconds on a device in place of a core
    publish_every: int = 1
    weights_bytes: float = 0.0
    # ---- central inference
    central: bool = False
    answer_cpu: float = 0.0  # of a server for a batch
    answer_each: float = 0.0  # and for each environment in it
    act_each: float = 0.0  # of that, what the policy takes
    answer_beside: float = 0.0  # seconds of a batch on a device in place of a core
    answer_wait: float = 0.0  # that a request waits for others
    answer_most: int = 0  # environments of a batch; 0: all of a server's actors
    request_bytes: float = 0.0
    # ---- memory
    actor_memory: float = 0.0
    learner_memory: float = 0.0
    service_memory: float = 0.0  # of a replay without what it stores
    server_memory: float = 0.0
    # ---- constants of the model
    idle: float = IDLE
    together: float = TOGETHER
    call_cpu: float = CALL_CPU
    byte_cpu: float = BYTE_CPU

    @property
    def row_seconds(self) -> float:
        """Of an actor that nobody holds up."""
        return self.row_cpu + self.row_wait + self.row_late

    @property
    def steps(self) -> int:
        """Of all environments of an actor, between two messages."""
        return self.envs * self.rows

    def items_per_update(self, actors: int) -> float:
        return self.batch_items * (actors if self.family == "rounds" else 1)

    def steps_per_update(self, actors: int) -> float | None:
        """That must be made for an update; None where learners go at their own pace."""
        if self.family == "gradients":
            return None
        times = self.ratio if self.family == "replay" else 1.0
        return self.items_per_update(actors) / times / self.block_items * self.steps if times else None

    def update_seconds(self, actors: int, learners: int) -> tuple[float, float]:
        """Of each of so many learners for an update: on a core, and beside it."""
        whole = self.update_cpu * (actors if self.family == "rounds" else 1)
        share = self.update_fixed + (1.0 - self.update_fixed) / max(1, learners)
        return whole * share, self.update_beside * share

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Who is on which machine: the number of actors on each, and of what else there is."""

    cores: int
    network: float  # bytes per second, each way
    actors: tuple[int, ...]  # on each machine
    learners: int = 1
    shards: int = 1
    servers: int = 0  # of inference

    @property
    def machines(self) -> int:
        return len(self.actors)

    @property
    def all_actors(self) -> int:
        return sum(self.actors)

    def homes(self) -> list[int]:
        """The machines of learners, then of services, then of inference servers: beside each other on the first one as
        long as each has a core there, then on the next ones."""
        return [
            min(number // max(1, self.cores), self.machines - 1)
            for number in range(self.learners + self.shards + self.servers)
        ]
