"""Batches of two sources: what is joined, who hears of what came of it, and where both stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shoal.learning import Learning, Source, Taken, Update
from shoal.loops.mixture import MixedSource, joined
from shoal.state import Scope, State


class Numbers(Source):
    """Gives batches of its number, and remembers what it hears."""

    def __init__(self, learning: Learning, *, number: float, count: int, own: str, importance: bool) -> None:
        self.number, self.count, self.own, self.importance = number, count, own, importance
        self.heard: list[Update] = []
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1

    def take(self) -> Taken:
        batch: dict[str, Any] = {
            "observation": {"a": torch.full((self.count, 2), self.number), "b": torch.full((self.count,), self.number)},
            "reward": torch.full((self.count,), self.number),
            self.own: torch.zeros(self.count),
            "state": {},
        }
        if self.importance:
            batch["importance"] = torch.full((self.count,), 0.5)
        return Taken(batch, self.count, self.own)

    def learned(self, taken: Taken, update: Update) -> None:
        assert taken.items == self.own
        self.heard.append(update)

    def measure(self, taken: Taken) -> Mapping[str, float]:
        return {self.own: self.number}

    def state_dict(self, scope: Scope = "own") -> State:
        return {"number": self.number}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


def mixed(importance: bool = False) -> tuple[MixedSource, list[Numbers]]:
    made: list[Numbers] = []

    def make(**options: Any) -> Any:
        def of(learning: Learning) -> Numbers:
            made.append(Numbers(learning, **options))
            return made[-1]

        return of

    table = make(number=1.0, count=3, own="version", importance=importance)
    data = make(number=2.0, count=2, own="log_prob", importance=False)
    return MixedSource(Learning(None, torch.device("cpu")), table=table, data=data), made  # type: ignore[arg-type]


def test_a_batch_is_one_of_the_table_and_then_one_of_the_data_in_the_columns_that_both_have() -> None:
    source, made = mixed()
    source.wait()
    taken = source.take()
    assert [part.waits for part in made] == [1, 1]
    assert taken.transitions == 5
    assert set(taken.batch) == {"observation", "reward", "state"}
    assert taken.batch["reward"].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert taken.batch["observation"]["a"].shape == (5, 2)
    assert taken.batch["observation"]["b"].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert source.measure(taken) == {"version": 1.0, "log_prob": 2.0}


def test_each_hears_how_surprising_its_own_items_were() -> None:
    source, (table, data) = mixed()
    taken = source.take()
    source.learned(taken, Update({}, priorities=torch.arange(5.0)))
    source.learned(taken, Update({}))
    assert [None if update.priorities is None else update.priorities.tolist() for update in table.heard] == [
        [0.0, 1.0, 2.0],
        None,
    ]
    assert data.heard[0].priorities is not None
    assert data.heard[0].priorities.tolist() == [3.0, 4.0]


def test_where_one_is_drawn_by_priority_items_of_the_other_count_in_full() -> None:
    source, _ = mixed(importance=True)
    assert source.take().batch["importance"].tolist() == [0.5, 0.5, 0.5, 1.0, 1.0]


def test_columns_become_those_of_the_first_ones_kind() -> None:
    one = {"reward": torch.ones(1), "action": torch.ones(1, dtype=torch.int64)}
    other = {"reward": torch.ones(1).double(), "action": torch.ones(1, dtype=torch.int32)}
    both = joined(one, other)
    assert (both["reward"].dtype, both["action"].dtype) == (torch.float32, torch.int64)


def test_its_state_is_that_of_both() -> None:
    source, _ = mixed()
    state = source.state_dict()
    state["data"]["number"] = 7.0
    again, (table, data) = mixed()
    again.load_state_dict(state)
    assert (table.number, data.number) == (1.0, 7.0)
