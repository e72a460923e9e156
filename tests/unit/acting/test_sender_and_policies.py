"""Names of writers' lives, inserts of which one is always under way, and policies that act in evaluation mode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from shoal.acting.network_policy import ExploringPolicy, NetworkPolicy
from shoal.acting.sender import PipelinedInserts, Sender
from shoal.program import NodeDied
from shoal.replay import Block, Inserted, rollout


class Answer:
    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value


class Service:
    """A replay that numbers its answers, and fails when it is told to."""

    def __init__(self) -> None:
        self.future = self
        self.inserted: list[Any] = []
        self.fails = False

    def insert(self, block: Any, timeout: float | None = None) -> Answer:
        if self.fails:
            raise NodeDied("gone")
        self.inserted.append(block)
        return Answer(Inserted({}, {"table": len(self.inserted)}))

    def forget_writer(self, *_: Any) -> None: ...


def block(name: str) -> Block:
    return Block(name, "life", 0, 0, 0, {"reward": np.zeros((2, 3))}, {})


def test_the_answer_to_an_insert_is_the_one_before_it_and_none_is_given_twice() -> None:
    service = Service()
    replay = PipelinedInserts(cast(Any, service))
    answers = [replay.insert(block(name)) for name in "abc"]
    assert [answer.refused for answer in answers] == [{}, {"table": 1}, {"table": 2}]
    service.fails = True
    with pytest.raises(NodeDied):
        replay.insert(block("d"))
    service.fails = False
    assert replay.insert(block("e")).refused == {}, "nothing is under way"
    assert [each.writer for each in service.inserted] == list("abce")


class Acts:
    def act(self) -> None: ...


def test_two_writers_of_one_name_have_lives_of_their_own() -> None:
    """Those of a resumed run count their restarts from 0 again."""
    senders = [Sender(cast(Any, Acts()), [cast(Any, Service())], {"table": rollout(2)}, "actor/0") for _ in range(2)]
    assert senders[0]._writer._life != senders[1]._writer._life


def test_what_was_lost_is_told_once_and_by_kinds_of_which_there_is_any() -> None:
    sender: Any = Sender(cast(Any, Acts()), [cast(Any, Service())], {"table": rollout(2)}, "actor/0")
    assert sender.take_lost() == {}
    sender._pipelined.lost_rows, sender._pipelined.lost_items, sender._writer.cut_items = 6, 2, 3
    assert sender.take_lost() == {"lost_rows": 6, "lost_items": 5}
    assert sender.take_lost() == {}
    sender._writer.cut_items = 1
    assert sender.take_lost() == {"lost_items": 1}


def test_a_policy_acts_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    assert network.training
    policy = NetworkPolicy(network, 0)
    assert not policy.network.training
    assert torch.equal(network(torch.ones(1, 2)), network(torch.ones(1, 2)))


def test_every_row_explores_as_its_environment_does() -> None:
    policy = ExploringPolicy(nn.Linear(1, 1), 0, ladder=np.array([0.1, 0.2, 0.3, 0.4]))
    policy.set_environments(np.array([3, 1]), 4)
    assert policy.exploration is not None
    assert policy.exploration.tolist() == [0.4, 0.2]
    greedy = ExploringPolicy(nn.Linear(1, 1), 0, greedy=True)
    greedy.set_environments(np.array([3]), 4)
    assert greedy.exploration is None


def test_after_a_loss_the_next_block_waits_for_its_own_answer() -> None:
    asked: list[str] = []

    class Lost:
        def result(self) -> Any:
            raise NodeDied("replay")

    class Ahead:
        def insert(self, block: Any, timeout: float | None) -> Any:
            asked.append("sent ahead")
            return Lost()

    class Service:
        future, forget_writer = Ahead(), None

        def insert(self, block: Any, timeout: float | None) -> Any:
            asked.append("waited for")
            return Inserted({}, {})

    block: Any = SimpleNamespace(columns={"reward": np.zeros((2, 3))}, items={})
    inserts: Any = PipelinedInserts(cast(Any, Service()))
    inserts.insert(block)
    with pytest.raises(NodeDied):
        inserts.insert(block)
    inserts.insert(block)
    assert asked == ["sent ahead", "sent ahead", "waited for"]
    assert inserts.lost_rows == 6
