"""Requests gathered into batches: nobody waits longer than is said, order is kept, one failure is one client's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from shoal.serving.batching import Answer, Ask, Batcher, Computed, Done, Lane, Lost, Refused, Work


class Computer:
    """Answers with the observation's first number, when it is told to, or at once."""

    def __init__(self, at_once: bool = False) -> None:
        self.at_once, self.version, self.most = at_once, 1, 1
        self.begun: list[tuple[Work, Done]] = []
        self.sizes: list[int] = []

    @property
    def free(self) -> bool:
        return len(self.begun) < self.most

    def start(self, work: Work, done: Done) -> None:
        self.sizes.append(len(work.first))
        if self.at_once:
            self.begun.append((work, done))
            self.finish()
        else:
            self.begun.append((work, done))

    def finish(self, error: Exception | None = None, which: int = 0) -> None:
        work, done = self.begun.pop(which)
        done(work, error or Computed(np.asarray(work.observation)[:, 0], {}, self.version))


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))  # type: ignore[arg-type]


def ask(batcher: Batcher, lane: Lane, number: float, found: list[Any], rows: int = 1) -> None:
    observation = np.full((rows, 2), number, np.float32)
    batcher.ask(Ask(lane, rows, observation, found.append))


def test_what_came_during_a_batch_is_the_next_one() -> None:
    async def main() -> None:
        computer, found = Computer(), []
        batcher = Batcher(computer, max_batch=4)
        for number in range(7):
            ask(batcher, Lane(), number, found)
        await asyncio.sleep(0)
        assert computer.sizes == [4]
        ask(batcher, Lane(), 7, found)
        computer.finish()
        await asyncio.sleep(0)
        assert computer.sizes == [4, 4]
        computer.finish()
        assert [float(answer.action[0]) for answer in found] == list(range(8))

    run(main)


def test_the_first_of_a_batch_waits_as_long_as_is_said_and_no_longer() -> None:
    async def main() -> None:
        computer, found = Computer(at_once=True), []
        batcher = Batcher(computer, max_batch=3, max_wait=0.05)
        ask(batcher, Lane(), 1, found)
        await asyncio.sleep(0.01)
        assert computer.sizes == []
        await asyncio.sleep(0.15)
        assert computer.sizes == [1]
        assert found[0].waited < 0.15
        for number in range(3):
            ask(batcher, Lane(), number, found)
        await asyncio.sleep(0)
        assert computer.sizes == [1, 3]  # a full one does not wait

    run(main)


def test_a_clients_answers_come_in_the_order_of_its_requests_over_several_computers() -> None:
    async def main() -> None:
        computer, found, lane = Computer(), [], Lane()
        computer.most = 2
        batcher = Batcher(computer, max_batch=1)
        ask(batcher, lane, 1, found)
        ask(batcher, lane, 2, found)
        ask(batcher, Lane(), 3, found)
        await asyncio.sleep(0.01)
        assert [float(work.observation[0, 0]) for work, _ in computer.begun] == [1, 3]
        computer.finish(which=1)
        await asyncio.sleep(0.01)
        assert len(computer.begun) == 1  # the second of the lane waits for the first
        computer.finish()
        await asyncio.sleep(0.01)
        computer.finish()
        assert [float(answer.action[0]) for answer in found] == [3, 1, 2]

    run(main)


def test_one_request_that_cannot_be_computed_fails_alone() -> None:
    class Picky(Computer):
        def start(self, work: Work, done: Done) -> None:
            self.begun.append((work, done))
            self.finish(ValueError("13") if 13 in np.asarray(work.observation) else None)

    async def main() -> None:
        found: dict[int, list[Any]] = {number: [] for number in (12, 13, 14)}
        batcher = Batcher(Picky(), max_batch=8)
        for number, answers in found.items():
            ask(batcher, Lane(), number, answers)
        await batcher.idle()
        assert isinstance(found[12][0], Answer)
        assert isinstance(found[14][0], Answer)
        assert str(found[13][0]) == "The policy failed (ValueError)."

    run(main)


def test_a_batch_whose_computer_is_lost_is_computed_by_another_and_answered_once() -> None:
    async def main() -> None:
        computer, found = Computer(), []
        batcher = Batcher(computer, max_batch=8)
        ask(batcher, Lane(), 5, found)
        await asyncio.sleep(0)
        work, done = computer.begun[0]
        computer.finish(Lost())
        await asyncio.sleep(0.01)
        assert not found
        computer.finish()
        done(work, Computed(np.zeros(1), {}, 1))  # the lost one was alive after all
        assert [float(answer.action[0]) for answer in found] == [5]

    run(main)


def test_too_many_are_refused_and_who_waits_too_long_is_told() -> None:
    async def main() -> None:
        computer, found = Computer(), []
        computer.most = 0
        batcher = Batcher(computer, max_pending=2, patience=0.05)
        ask(batcher, Lane(), 1, found)
        ask(batcher, Lane(), 2, found)
        with pytest.raises(Refused, match="busy: 2 requests wait"):
            ask(batcher, Lane(), 3, found)
        await asyncio.sleep(0.2)
        assert [answer.busy for answer in found] == [True, True]

    run(main)


def test_an_action_that_is_not_finite_is_no_answer() -> None:
    async def main() -> None:
        computer, found = Computer(at_once=True), []
        ask(Batcher(computer), Lane(), float("nan"), found)
        await asyncio.sleep(0.01)
        assert "not finite" in str(found[0])

    run(main)
