"""Calls between nodes mean the same on every runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest
from probe_nodes import Caller, Clock, Service
from starting import start_on

from shoal.program import Program, node_seed
from shoal.runtime import Run

SEED = 7


@dataclass
class Lab:
    """A running program on which many small questions are asked."""

    runtime: str
    run: Run
    service: Any
    callers: list[Any]
    clock: Any


@pytest.fixture(scope="module")
def lab(runtime: str) -> Iterator[Lab]:
    program = Program()
    service = program.add("service", Service)
    nested: Any = {"nested": [{"service": service}], "tuple": (1, service)}
    callers = [program.add(f"caller/{index}", Caller, nested) for index in range(2)]
    clock = program.add("clock", Clock)
    with start_on(runtime, program, seed=SEED) as run:
        yield Lab(runtime, run, run.client(service), [run.client(caller) for caller in callers], run.client(clock))


@pytest.fixture(autouse=True)
def fresh(lab: Lab) -> None:
    lab.service.forget()


def test_a_call_waits_for_its_answer(lab: Lab) -> None:
    assert lab.service.echo({"a": [1, "two", (3.0, None)]}) == {"a": [1, "two", (3.0, None)]}
    assert lab.service.append(value="by keyword") == 1


def test_a_future_does_not_wait(lab: Lab) -> None:
    held = lab.service.future.hold()
    lab.service.held(1)
    assert not held.done()
    lab.service.release()
    assert held.result()[0]
    assert held.done()


def test_a_future_keeps_its_answer(lab: Lab) -> None:
    answer = lab.service.future.echo([1])
    assert answer.result() == answer.result() == [1]


def test_futures_of_one_caller_run_in_the_order_they_were_made(lab: Lab) -> None:
    sizes = [3, 200_000, 10, 60_000, 0] * 20  # large and small ones take different ways
    answers = [lab.service.future.append((index, np.full(size, index))) for index, size in enumerate(sizes)]
    assert [answer.result() for answer in answers] == list(range(1, 101))
    assert [index for index, _ in lab.service.log()] == list(range(100))


def test_futures_of_another_node_run_in_the_order_they_were_made(lab: Lab) -> None:
    assert lab.callers[0].futures("append", list(range(200))) == list(range(1, 201))
    assert lab.service.log() == list(range(200))


def test_answers_can_be_taken_in_any_order(lab: Lab) -> None:
    answers = [lab.service.future.echo(index) for index in range(20)]
    assert [answer.result() for answer in reversed(answers)] == list(reversed(range(20)))


def test_a_blocked_call_does_not_block_other_callers(lab: Lab) -> None:
    held = lab.callers[0].future.through("hold")
    lab.service.held(1)
    assert lab.service.echo(1) == 1
    assert lab.callers[1].through("echo", 2) == 2
    lab.callers[1].through("release")
    assert held.result()[0]


def test_a_blocked_future_does_not_block_the_callers_waiting_calls(lab: Lab) -> None:
    held = lab.service.future.hold()
    behind = lab.service.future.echo("behind")
    assert lab.service.echo("past it") == "past it"
    assert not behind.done()
    lab.service.release()
    assert behind.result() == "behind"
    assert held.result()[0]


def test_a_nodes_calls_pass_through_nodes(lab: Lab) -> None:
    assert lab.callers[0].through("who")["name"] == "service"


def test_an_exception_keeps_its_type_and_carries_the_remote_traceback_and_the_nodes_name(lab: Lab) -> None:
    with pytest.raises(KeyError, match="lost key") as caught:
        lab.service.fail("lost key")
    notes = "\n".join(caught.value.__notes__)
    assert "raised in node 'service'" in notes
    if lab.runtime != "inline":  # there the exception's own traceback leads to the line
        assert "in fail" in notes
        assert "raise KeyError(message)" in notes


def test_an_exception_of_a_future_is_raised_when_the_answer_is_taken(lab: Lab) -> None:
    answer = lab.service.future.fail("later")
    lab.service.echo(1)
    with pytest.raises(KeyError, match="later"):
        answer.result()


def test_an_exception_names_every_node_it_passed(lab: Lab) -> None:
    with pytest.raises(KeyError) as caught:
        lab.callers[1].through("fail", "deep")
    notes = "\n".join(caught.value.__notes__)
    assert "'service'" in notes
    assert "'caller/1'" in notes


def test_an_exception_that_cannot_be_sent_arrives_as_a_runtime_error_with_its_text(lab: Lab) -> None:
    if lab.runtime == "inline":
        pytest.skip("exceptions are not sent anywhere")
    with pytest.raises(RuntimeError, match="kept at home"):
        lab.service.fail_with_what_cannot_be_sent()
    assert lab.service.echo(1) == 1


def test_an_answer_that_cannot_be_sent_is_an_error_of_the_call_alone(lab: Lab) -> None:
    with pytest.raises(TypeError, match="pickle"):
        lab.service.answer_with_what_cannot_be_sent()
    assert lab.service.echo(1) == 1


def test_an_argument_that_cannot_be_sent_is_an_error_of_the_call_alone(lab: Lab) -> None:
    with pytest.raises(TypeError, match="pickle"):
        lab.service.echo(threading.Lock())
    assert lab.service.echo(1) == 1


def test_a_node_serves_on_after_an_exception(lab: Lab) -> None:
    for _ in range(3):
        with pytest.raises(KeyError):
            lab.service.fail("again")
    assert lab.service.echo(1) == 1


def test_private_and_missing_methods_are_refused(lab: Lab) -> None:
    with pytest.raises(AttributeError):
        _ = lab.service._private
    with pytest.raises(AttributeError, match="Service has no public method 'missing'"):
        lab.service.missing()
    with pytest.raises(AttributeError, match="Service has no public method '_private'"):
        lab.service._lane.send("_private", (), {}).result()  # a client that does not obey


def test_public_methods_are_called_while_step_runs(lab: Lab) -> None:
    before = lab.clock.steps()
    for _ in range(200):
        lab.run.wait(0.05)
        if lab.clock.steps() > before + 10:
            return
    raise AssertionError("the node's step does not run between calls")


ARRAYS = [
    np.arange(12, dtype=np.int8),
    np.arange(500_000, dtype=np.float32).reshape(100, 50, 100),
    np.arange(200_000, dtype=np.int64)[::3],
    np.asfortranarray(np.random.default_rng(0).standard_normal((300, 400))),
    np.zeros((0, 5), np.float64),
    np.array(3.5),
    np.random.default_rng(1).integers(0, 2, (64, 2000)).astype(np.bool_),
    np.array([(1, 2.0)] * 10_000, dtype=[("key", np.int64), ("priority", np.float64)]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.kind}{array.shape}")
def test_arrays_arrive_as_they_were(lab: Lab, array: np.ndarray[Any, Any]) -> None:
    answer = lab.service.echo({"nested": (array, [array])})
    for received in (answer["nested"][0], answer["nested"][1][0]):
        assert received.dtype == array.dtype
        assert received.shape == array.shape
        np.testing.assert_array_equal(received, array)


def test_what_is_sent_is_a_copy(lab: Lab) -> None:
    sent = np.zeros(100_000, np.float32)
    pending = lab.service.future.append(sent)
    sent[:] = 1.0
    pending.result()
    lab.service.append(sent)
    sent[:] = 2.0
    first, second = lab.service.log()
    assert float(first.sum()) in (0.0, 100_000.0)  # as it was or as it became, never half of each
    assert float(second.sum()) == 100_000.0


def test_results_are_the_callers_own(lab: Lab) -> None:
    lab.service.append([1])
    lab.service.log().append("mine alone")
    assert lab.service.log() == [[1]]


def test_many_large_arrays_in_flight_stay_apart(lab: Lab) -> None:
    answers = [lab.service.future.filled((300, 1000), index) for index in range(40)]
    results = [answer.result() for answer in answers]
    sums = [lab.service.future.total(result) for result in results]
    for index, (result, total) in enumerate(zip(results, sums)):
        assert (result == index).all()
        assert total.result() == index * 300_000


def test_memory_of_calls_is_used_again(lab: Lab) -> None:
    pids = {lab.service.pid(), psutil.Process().pid}
    block = np.ones(100_000, np.float32)

    def calls(count: int) -> None:
        for _ in range(count):
            assert lab.service.filled((100_000,), 1.0).shape == block.shape
            lab.service.total(block)

    calls(50)
    before = {pid: psutil.Process(pid).memory_info().rss for pid in pids}
    calls(500)
    grown = {pid: psutil.Process(pid).memory_info().rss - before[pid] for pid in pids}
    assert max(grown.values()) < 20 << 20, f"400 MB in 1,000 calls, and memory grew by {grown}"


def test_a_timeout_passes_on_the_server_and_is_virtual_inline(lab: Lab) -> None:
    timeout = 20.0 if lab.runtime == "inline" else 0.2
    start = time.monotonic()
    came, waited = lab.service.hold(timeout=timeout)
    assert not came
    assert timeout <= waited < timeout * 1.5 + 0.5
    assert time.monotonic() - start < 5.0


def test_every_node_has_its_own_name_and_seed_in_every_thread(lab: Lab) -> None:
    who = lab.service.who()
    assert who == {"name": "service", "seed": node_seed(SEED, "service", 0), "restarts": 0, "same": True}
    assert len({node_seed(SEED, name, restarts) for name in ("a/0", "a/1") for restarts in range(2)}) == 4


def test_torch_keeps_to_one_thread(lab: Lab) -> None:
    assert lab.service.torch_threads() == 1
