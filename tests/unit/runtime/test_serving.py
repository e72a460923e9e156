"""A caller's calls begin and are answered in order; one that lets go of its lock alone lets the next one begin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal import sync
from shoal.program import Context, NodeDied
from shoal.replay import Replay, Table, Writer, rollout
from shoal.runtime.network.rpc import LocalLane, serve
from shoal.runtime.network.transport import Connection, pair


class Unreadable:
    """An argument that cannot be made again where it arrives."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


class Desk:
    """Calls that leave their lock for as long as the test says."""

    in_turns = True

    def __init__(self) -> None:
        self.lock = sync.Condition()
        self.begun: list[int] = []
        self.gates = {number: threading.Event() for number in range(10)}

    def copy(self, number: int, alone: bool = True) -> int:
        with self.lock:
            self.begun.append(number)
            with self.lock.released():
                sync.work_beside_others(alone=alone)
                assert self.gates[number].wait(20)
            return number

    def quick(self, number: int) -> int:
        with self.lock:
            self.begun.append(number)
        return number

    def leave(self) -> None:
        raise SystemExit

    def unsendable(self, number: int) -> Any:
        self.begun.append(number)
        return threading.Lock()

    def unreadable(self) -> Any:
        return Unreadable()


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def lane(desk: Desk) -> Iterator[LocalLane]:
    here, there = pair()
    lane = LocalLane("desk", Connection(here))
    server = threading.Thread(target=serve, args=(desk, Connection(there), Context("desk")), daemon=True)
    server.start()
    yield lane
    lane.hang_up()
    for gate in desk.gates.values():
        gate.set()
    server.join(20)
    assert not server.is_alive()
    lane.close()


def until(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to that")


def test_the_next_call_begins_while_one_copies_and_answers_keep_their_order(desk: Desk, lane: LocalLane) -> None:
    first, second, third = (lane.send("copy", (number,), {}) for number in range(3))
    until(lambda: desk.begun == [0, 1])
    desk.gates[1].set()  # done before the first: its answer waits
    assert not second.done()
    assert desk.begun == [0, 1]  # two at a time
    desk.gates[0].set()
    assert (first.result(), second.result()) == (0, 1)
    desk.gates[2].set()
    assert third.result() == 2


def test_a_call_that_does_not_say_so_lets_no_other_begin(desk: Desk, lane: LocalLane) -> None:
    first = lane.send("copy", (0,), {"alone": False})
    second = lane.send("quick", (1,), {})
    until(lambda: desk.begun == [0])
    assert not threading.Event().wait(0.1)
    assert desk.begun == [0]
    desk.gates[0].set()
    assert (first.result(), second.result()) == (0, 1)
    assert desk.begun == [0, 1]


def test_errors_keep_the_order_too(desk: Desk, lane: LocalLane) -> None:
    answers = [
        lane.send(*call, {}) for call in (("copy", (0,)), ("unsendable", (1,)), ("missing", ()), ("quick", (3,)))
    ]
    until(lambda: desk.begun == [0, 1])
    desk.gates[0].set()
    assert answers[0].result() == 0
    with pytest.raises(TypeError, match="cannot pickle"):
        answers[1].result()
    with pytest.raises(AttributeError, match="no public method 'missing'"):
        answers[2].result()
    assert answers[3].result() == 3


def test_a_caller_that_hangs_up_ends_both_threads(desk: Desk, lane: LocalLane) -> None:
    before = threading.active_count()
    answers = [lane.send("copy", (number,), {}) for number in range(2)]
    until(lambda: desk.begun == [0, 1])
    assert threading.active_count() == before + 1
    lane.hang_up()
    for gate in desk.gates.values():
        gate.set()
    for answer in answers:
        with pytest.raises(NodeDied):
            answer.result()
    until(lambda: threading.active_count() == before - 1)


def test_a_call_that_cannot_be_read_is_answered_in_its_place(desk: Desk, lane: LocalLane) -> None:
    answers = [lane.send("copy", (0,), {}), lane.send("quick", (Unreadable(),), {}), lane.send("quick", (2,), {})]
    until(lambda: desk.begun == [0])
    desk.gates[0].set()
    assert answers[0].result() == 0
    with pytest.raises(ValueError, match="invalid literal"):
        answers[1].result()
    assert answers[2].result() == 2


def test_calls_after_one_that_cannot_be_sent_get_their_own_answers(desk: Desk, lane: LocalLane) -> None:
    first = lane.send("quick", (1,), {})
    with pytest.raises(TypeError, match="pickle"):
        lane.send("quick", (threading.Lock(),), {})
    second = lane.send("quick", (2,), {})
    until(second.done)
    assert (first.result(), second.result(), desk.begun) == (1, 2, [1, 2])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_after_an_answer_that_cannot_be_read_get_their_own_answers(desk: Desk, lane: LocalLane) -> None:
    first, unreadable, last = (
        lane.send(method, arguments, {}) for method, arguments in (("quick", (1,)), ("unreadable", ()), ("quick", (3,)))
    )
    assert last.result() == 3
    assert first.result() == 1
    with pytest.raises(ValueError, match="not a number") as caught:
        unreadable.result()
    assert "'desk'" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="not a number"):
        lane.send("unreadable", (), {}).result()
    assert lane.send("quick", (4,), {}).result() == 4


def test_a_call_that_ends_its_thread_ends_the_connection(desk: Desk, lane: LocalLane) -> None:
    answers = [lane.send("copy", (0,), {}), lane.send("leave", (), {}), lane.send("quick", (2,), {})]
    until(lambda: desk.begun == [0])
    with pytest.raises(NodeDied):
        answers[1].result()
    desk.gates[0].set()
    for answer in (answers[0], answers[2]):
        with pytest.raises(NodeDied):
            answer.result()


def test_an_object_that_is_not_served_in_turns_has_one_call_at_a_time(
    desk: Desk, lane: LocalLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Desk, "in_turns", False)
    here, there = pair()
    other = LocalLane("desk", Connection(here))
    threading.Thread(target=serve, args=(desk, Connection(there), Context("desk")), daemon=True).start()
    first, second = other.send("copy", (0,), {}), other.send("quick", (1,), {})
    until(lambda: desk.begun == [0])
    assert not threading.Event().wait(0.1)
    assert desk.begun == [0]
    desk.gates[0].set()
    assert (first.result(), second.result()) == (0, 1)
    other.close()


def test_without_another_thread_the_next_call_waits(
    desk: Desk, lane: LocalLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    desk.gates[0].set()
    desk.gates[1].set()
    first, second = lane.send("copy", (0,), {}), lane.send("copy", (1,), {})
    assert (first.result(), second.result()) == (0, 1)
    with desk.lock:  # nobody holds it still
        pass


def test_large_batches_that_overlap_hold_what_they_should() -> None:
    replay = Replay([Table("items", 4000)])
    number = np.arange(256 * 8, dtype=np.int32).reshape(256, 8)
    Writer(replay, {"items": rollout(7)}).append({"number": number, "wide": np.repeat(number[..., None], 1024, 2)})
    for _ in range(20):  # connections: segments are made while answers are sent
        here, there = pair()
        lane = LocalLane("replay", Connection(here))
        server = threading.Thread(target=serve, args=(replay, Connection(there), Context("replay")), daemon=True)
        server.start()
        asked = [lane.send("sample", ("items", 20 + 3 * index), {}) for index in range(8)]
        for index, future in enumerate(asked):
            sample = future.result()
            assert len(sample) == 20 + 3 * index
            assert (sample.data["wide"] == sample.data["number"][..., None]).all()
        lane.hang_up()
        server.join(20)
        assert not server.is_alive()
        lane.close()


def test_calls_to_a_node_that_is_gone_say_so_until_another_takes_its_place(desk: Desk, lane: LocalLane) -> None:
    lane._die()
    with pytest.raises(NodeDied, match=r"^node 'desk' is gone$"):
        lane.send("echo", (1,), {}).result()
    assert not lane._pending
