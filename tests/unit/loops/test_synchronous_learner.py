"""A learner that learns on-policy throws away what older weights have acted, and its counters go on after a restart."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from torch import nn

from shoal.learning import Update
from shoal.loops.learner import LearnerLoop
from shoal.loops.sources import TableSource
from shoal.replay import MinSize, Replay, Table, Uniform, Writer, n_step
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.state import Stateful
from shoal.versions import make_version

BATCH = 2


class Counting(Stateful):
    """Learns nothing; remembers the rewards of every batch."""

    not_state = ("rewards",)

    def __init__(self) -> None:
        self.rewards: list[list[float]] = []
        self.network = nn.Linear(1, 1)

    def update(self, batch: dict[str, Any]) -> Update:
        self.rewards.append(batch["reward"].tolist())
        return Update({}, applied=bool(batch["reward"][0] != 3.0))


def items(version: int, reward: float) -> Any:
    """A sample of items with one reward, acted with the weights of one version."""
    replay = Replay([Table("items", 10, sampler=Uniform(), limiter=MinSize(1))])
    writer = Writer(replay, {"items": n_step(1, 0.9)})
    columns = {
        "observation": np.zeros((BATCH + 1, 1, 2), np.float32),
        "reward": np.full((BATCH + 1, 1), reward, np.float32),
        "terminated": np.zeros((BATCH + 1, 1), bool),
        "valid": np.ones((BATCH + 1, 1), bool),
        "version": np.full((BATCH + 1, 1), make_version(0, version)),
    }
    writer.append(columns)
    return replay.sample("items", BATCH)


class Scripted:
    """A replay that gives these samples in turn."""

    def __init__(self, *samples: Any) -> None:
        self._samples = list(samples)

    def sample(self, table: str, batch: int, timeout: float | None = None) -> Any:
        return self._samples.pop(0) if self._samples else None

    def info(self) -> dict[str, Any]:
        return {"items": {"size": 0, "inserts_per_second": 0.0}}


def loop_over(*samples: Any, metrics: Metrics | None = None, **options: Any) -> tuple[LearnerLoop, Counting]:
    made = Counting()
    source = partial(
        TableSource,
        replay=cast(Any, Scripted(*samples)),
        table="items",
        batch=BATCH,
        observation_space=spaces.Box(-1.0, 1.0, (2,)),
        synchronous=options.pop("synchronous", False),
    )
    return LearnerLoop(lambda seed: cast(Any, made), source, WeightStore(), metrics or Metrics(), **options), made


def test_items_of_older_weights_are_thrown_away_and_counted() -> None:
    metrics = Metrics()
    samples = (items(0, 1.0), items(0, 2.0), items(1, 4.0))
    loop, made = loop_over(*samples, metrics=metrics, synchronous=True)
    loop.step()
    loop.step()
    assert made.rewards == [[1.0, 1.0], [4.0, 4.0]]
    loop.report()
    assert metrics.snapshot()["counts"]["stale_items"] == BATCH
    assert metrics.snapshot()["counts"]["learner_steps"] == 2


def test_a_batch_with_one_older_item_is_thrown_away() -> None:
    mixed = items(1, 2.0)
    mixed.data["version"] = np.array([make_version(0, 0), make_version(0, 1)])
    loop, made = loop_over(items(0, 1.0), mixed, items(1, 4.0), synchronous=True)
    loop.step()
    loop.step()
    assert made.rewards == [[1.0, 1.0], [4.0, 4.0]]


def test_otherwise_every_item_is_learned_from() -> None:
    loop, made = loop_over(items(0, 1.0), items(0, 2.0))
    loop.step()
    loop.step()
    assert made.rewards == [[1.0, 1.0], [2.0, 2.0]]


def test_updates_and_refusals_in_a_row_go_on() -> None:
    loop, _ = loop_over(items(0, 1.0), items(0, 3.0))
    loop.step()
    loop.step()
    state = loop.state_dict()
    assert (state["updates"], state["refused"]) == (2, 1)
    again, _ = loop_over()
    again.load_state_dict(state)
    assert again.state_dict().keys() == state.keys()
    assert (again.state_dict()["updates"], again.state_dict()["refused"]) == (2, 1)


def test_a_report_publishes_what_has_not_been_published_yet() -> None:
    loop, _ = loop_over(items(0, 1.0), items(0, 2.0), publish_every=10)
    weights = loop._weights
    loop.step()
    assert weights.version() == make_version(0, 0)
    loop.report()
    assert weights.version() == make_version(0, 1)
