"""The learner's side of prioritised replay: what it is given, what it sends back, and what it reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shoal.loops.learner import LearnerLoop
from shoal.replay import MinSize, Prioritized, Replay, Table, Writer, n_step
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.state import Stateful
from shoal.versions import NONE, make_version, updates_between

BATCH, CAPACITY, ITEMS = 8, 2000, 2150


class Recording(Stateful):
    """Learns nothing; gives every item a priority of its own, which its reward tells."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.network = nn.Linear(1, 1)

    def update(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.batches.append(batch)
        return {"priorities": new_priority(batch["reward"]), "loss": 0.5}


def new_priority(reward: Any) -> Any:
    return 1_000_000.0 + 3.0 * reward  # so large that each of them is drawn again


def filled() -> Replay:
    """Items whose rewards are 0, 1, 2, … and whose priorities are one more; all of version 2."""
    table = Table("items", CAPACITY, sampler=Prioritized(0.6), limiter=MinSize(1), soft_capacity=True)
    replay = Replay([table], seed=1)
    writer = Writer(replay, {"items": n_step(1, 0.9)})
    for row in range(ITEMS + 1):
        columns = {
            "observation": np.zeros((1, 1, 2), np.float32),
            "reward": np.full((1, 1), row, np.float32),
            "terminated": np.zeros((1, 1), bool),
            "valid": np.ones((1, 1), bool),
            "version": np.full((1, 1), make_version(0, 2)),
        }
        writer.append(columns, float(row))  # the item that it completes began one row before
    return replay


def loop_over(replay: Replay, metrics: Metrics, **options: Any) -> tuple[LearnerLoop, Recording]:
    made = Recording()
    space = spaces.Box(-1.0, 1.0, (2,))
    loop = LearnerLoop(
        lambda seed: made, "items", BATCH, replay, WeightStore(), metrics, observation_space=space, beta=0.4, **options
    )
    return loop, made


def test_importance_weights_come_with_the_batch_and_priorities_go_back() -> None:
    replay = filled()
    loop, made = loop_over(replay, Metrics())
    loop.step()
    (batch,) = made.batches
    assert all(isinstance(column, torch.Tensor) for name, column in batch.items() if name != "state")
    rewards = batch["reward"].numpy()
    assert len(set(rewards)) > BATCH // 2  # priorities that went to another item would be seen
    drawn = rewards.astype(np.float64) + 1.0
    probability = drawn**0.6 / (np.arange(1, ITEMS + 1) ** 0.6).sum()
    weights = (ITEMS * probability) ** -0.4
    np.testing.assert_allclose(batch["importance"], weights / weights.max(), rtol=1e-5)
    again = replay.sample("items", CAPACITY)
    seen = np.isin(again.data["reward"], rewards)
    assert set(again.data["reward"][seen]) == set(rewards)
    np.testing.assert_array_equal(again.priorities[seen], new_priority(again.data["reward"][seen]))
    assert (again.priorities[~seen] == again.data["reward"][~seen] + 1.0).all()


def test_what_is_over_the_soft_capacity_goes_when_it_is_time() -> None:
    replay = filled()
    loop, _ = loop_over(replay, Metrics(), trim_every=3)
    sizes = []
    for _ in range(4):
        loop.step()
        sizes.append(replay.info()["items"]["size"])
    assert sizes == [ITEMS, ITEMS, CAPACITY, CAPACITY]


def test_reports_say_what_users_of_replay_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.services.metrics.PERIOD", 0.0)
    metrics = Metrics()
    loop, made = loop_over(filled(), metrics)
    for _ in range(5):
        loop.step()
    values = metrics.snapshot()["values"]
    last = made.batches[-1]
    assert values["staleness"] == 4 - 2  # four updates were made before the last, and its items are of version 2
    assert values["importance_max"] == last["importance"].max() == 1.0
    assert values["importance_min"] == pytest.approx(float(last["importance"].min()))
    assert values["priority_min"] <= values["priority_mean"] <= values["priority_max"]
    assert values["replay_size"] == ITEMS
    assert values["replay_age_seconds"] >= 0.0
    assert values["loss"] == 0.5


def test_the_share_of_a_batch_is_weighted_by_the_whole_batchs_largest() -> None:
    sample = filled().sample("items", BATCH)
    alone = sample.importance_weights(0.4)
    np.testing.assert_allclose(sample.importance_weights(0.4, lambda own: 2.0 * own), alone / 2.0, rtol=1e-6)


def test_an_actors_staleness_counts_updates() -> None:
    assert updates_between(make_version(0, 7), make_version(0, 12)) == 5
    assert updates_between(NONE, make_version(0, 12)) == 0
    assert updates_between(make_version(0, 7), make_version(1, 3)) == 0  # of learners that started again
