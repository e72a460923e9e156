"""Where learners meet: who waits for whom, what sums hold, and what happens when one comes again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from shoal.optim import AllReduce
from shoal.program import Capabilities, Context, NodeDied, set_current
from shoal.services.group import Group, Member, PeerLost, interface_of

Call = Callable[..., Future[Any]]


@pytest.fixture
def call() -> Iterator[Call]:
    """Calls that go on in threads of their own, as a runtime serves them; groups that were called are closed at the
    end, so that a test which fails does not hang with whoever still waits there."""
    called: list[Any] = []

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        called.append(getattr(function, "__self__", None))
        return threads.submit(function, *arguments)

    with ThreadPoolExecutor(16) as threads:
        yield submit
        for group in called:
            if isinstance(group, Group):
                group.close()


def meet(call: Call, group: Group, lives: list[int]) -> list[int]:
    """The generation that each rank is told."""
    answers = [call(group.join, rank, life, "here") for rank, life in enumerate(lives)]
    return [answer.result(5.0)[0] for answer in answers]


def pending(answer: Future[Any]) -> bool:
    time.sleep(0.05)
    return not answer.done()


def test_joining_waits_for_the_last_and_tells_all_the_same(call: Call) -> None:
    group = Group(3)
    early = [call(group.join, rank, 0, f"machine {rank}") for rank in (2, 0)]
    assert all(pending(answer) for answer in early)
    expected = (0, ["machine 0", "machine 1", "machine 2"])
    assert group.join(1, 0, "machine 1") == expected
    assert [answer.result(5.0) for answer in early] == [expected, expected]


def test_every_meeting_is_a_generation_above_the_one_before(call: Call) -> None:
    group = Group(2)
    generations = [meet(call, group, lives) for lives in ([0, 0], [1, 1], [2, 3], [4, 4])]
    assert all(a == b for a, b in generations)
    assert [a for a, _ in generations] == sorted({a for a, _ in generations})


def test_the_generation_is_the_highest_life_among_the_members(call: Call) -> None:
    assert meet(call, Group(2), [2, 5]) == [5, 5]


def test_a_restarted_group_service_does_not_bring_an_old_generation_back(call: Call) -> None:
    assert meet(call, Group(2), [3, 2])[0] > meet(call, Group(2), [2, 1])[0]


def test_the_address_is_waited_for_and_belongs_to_its_generation(call: Call) -> None:
    group = Group(2)
    meet(call, group, [0, 0])
    asked = call(group.address, 0)
    assert pending(asked)
    group.announce(0, ("127.0.0.1", 1234))
    assert asked.result(5.0) == ("127.0.0.1", 1234)
    meet(call, group, [1, 1])
    group.announce(0, ("127.0.0.1", 1234))  # late, from the generation before
    asked = call(group.address, 1)
    assert pending(asked)
    group.announce(1, ("127.0.0.1", 4321))
    assert asked.result(5.0) == ("127.0.0.1", 4321)


def test_sums_never_mix_rounds_however_ranks_race(call: Call) -> None:
    size, rounds = 4, 200
    group = Group(size)
    meet(call, group, [0] * size)

    def run(rank: int) -> list[float]:
        random = np.random.default_rng(rank)
        results = []
        for step in range(rounds):
            if random.random() < 0.1:
                time.sleep(0.001 * random.random())
            results.append(float(group.sum(0, rank, np.array([10.0**rank * (step % 7 + 1)]))[0]))
        return results

    found = [answer.result(30.0) for answer in [call(run, rank) for rank in range(size)]]
    expected = [1111.0 * (step % 7 + 1) for step in range(rounds)]
    assert found == [expected] * size


def test_all_ranks_get_the_same_sum_to_the_last_bit(call: Call) -> None:
    group = Group(3)
    meet(call, group, [0, 0, 0])
    parts = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    answers = [call(group.sum, 0, rank, parts[rank]) for rank in (2, 0, 1)]
    sums = [answer.result(5.0) for answer in answers]
    assert all(np.array_equal(sums[0], one) for one in sums)
    np.testing.assert_allclose(sums[0], parts.sum(0), rtol=1e-5, atol=1e-6)


def test_what_is_brought_may_change_afterwards(call: Call) -> None:
    group = Group(2)
    meet(call, group, [0, 0])
    mine = np.ones(4)
    answer = call(group.sum, 0, 0, mine)
    assert pending(answer)
    mine[:] = 100.0  # received memory is used again
    group.sum(0, 1, np.ones(4))
    np.testing.assert_array_equal(answer.result(5.0), 2.0)


def test_when_a_rank_comes_again_the_others_lose_their_group(call: Call) -> None:
    group = Group(2)
    meet(call, group, [0, 0])
    summing = call(group.sum, 0, 0, np.ones(3))
    assert pending(summing)
    again = call(group.join, 1, 1, "here")
    with pytest.raises(PeerLost):
        summing.result(5.0)
    with pytest.raises(PeerLost):
        group.sum(0, 0, np.ones(3))
    assert group.join(0, 1, "here")[0] == again.result(5.0)[0] == 1
    sums = [call(group.sum, 1, rank, np.full(3, float(rank + 1))) for rank in range(2)]
    for one in sums:
        np.testing.assert_array_equal(one.result(5.0), 3.0)


def test_the_address_of_a_group_is_not_given_out_any_more_once_a_rank_has_come_again(call: Call) -> None:
    group = Group(3)
    meet(call, group, [0, 0, 0])
    group.announce(0, ("127.0.0.1", 1234))
    assert group.address(0) == ("127.0.0.1", 1234)
    call(group.join, 1, 1, "here")
    with group._changed:
        assert group._changed.wait_for(lambda: 1 in group._waiting, 5.0)
    with pytest.raises(PeerLost, match="another learner has been lost while the group was connecting"):
        group.address(0)


def test_what_was_brought_to_a_lost_generation_is_no_part_of_a_sum_of_the_next(call: Call) -> None:
    group = Group(2)
    meet(call, group, [0, 0])
    lost = call(group.sum, 0, 0, np.full(3, 100.0))
    assert pending(lost)
    again = call(group.join, 1, 1, "here")
    with pytest.raises(PeerLost):
        lost.result(5.0)
    assert group.join(0, 1, "here")[0] == again.result(5.0)[0] == 1
    first = call(group.sum, 1, 1, np.full(3, 2.0))
    assert pending(first)  # rank 0 has brought nothing yet to this one
    np.testing.assert_array_equal(group.sum(1, 0, np.ones(3)), 3.0)
    np.testing.assert_array_equal(first.result(5.0), 3.0)


def test_a_rank_that_dies_while_it_waits_is_replaced_by_its_successor(call: Call) -> None:
    group = Group(2)
    dead = call(group.join, 1, 0, "here")
    assert pending(dead)
    successor = call(group.join, 1, 1, "here")
    with pytest.raises(PeerLost):
        dead.result(5.0)
    assert pending(successor)
    assert group.join(0, 0, "here") == successor.result(5.0)


def test_a_life_that_has_been_replaced_cannot_join_any_more(call: Call) -> None:
    group = Group(2)
    successor = call(group.join, 1, 1, "here")
    assert pending(successor)
    with pytest.raises(PeerLost, match="learner 1 has been started again since"):
        group.join(1, 0, "here")
    assert group.join(0, 0, "here")[0] == successor.result(5.0)[0] == 1


def test_closing_wakes_everybody(call: Call) -> None:
    group = Group(2)
    waiting = call(group.join, 0, 0, "here")
    assert pending(waiting)
    threading.Timer(0.0, group.close).start()
    with pytest.raises(NodeDied):
        waiting.result(5.0)


def test_the_largest_of_all_learners_values(call: Call) -> None:
    group = Group(3)

    def largest(rank: int, value: float) -> float:
        set_current(
            Context(f"learner/{rank}", runtime=Capabilities(own_processes=False))
        )  # sums go through the service
        return Member(group, rank, 3).largest(value)

    answers = [call(largest, rank, value) for rank, value in enumerate((0.5, 7.25, 1e-9))]
    assert [answer.result(5.0) for answer in answers] == [7.25] * 3


def test_gradients_on_one_device_are_weighted_by_counts_from_another() -> None:
    class Two:
        rank, size = 0, 2

        def sum(self, values: torch.Tensor) -> torch.Tensor:
            return values

    optimizer = AllReduce([torch.nn.Parameter(torch.zeros(3))], Two(), rate=0.1)
    gradient, loss = torch.zeros(3, device="meta"), torch.zeros((), device="meta")
    reduced, _ = optimizer._reduce(gradient, loss, torch.tensor(5))
    assert reduced.device.type == "meta"


def test_the_interface_of_an_address_is_found() -> None:
    assert (interface_of("127.0.0.1") or "").startswith("lo")
    assert interface_of("192.0.2.77") is None
