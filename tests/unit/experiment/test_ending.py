"""The end of a run: signals, the last reports, which weights are kept, and that nothing is waited for in vain."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from shoal.cli import main as cli
from shoal.cli.commands.common import INTERRUPTED
from shoal.experiment import ending
from shoal.experiment.ending import Ending, Interrupts
from shoal.program import NodeDied, Program
from shoal.runtime.restarts import Supervisor
from shoal.types import Role

NEWEST, CONFIRMED = {"w": np.zeros(2)}, {"w": np.ones(2)}


class Never:
    """The answer of a node that hangs."""

    def done(self) -> bool:
        return False

    def result(self) -> Any:
        raise AssertionError("whoever waits for this hangs, too")


class Node:
    """A node that answers as it is told to; with `hangs`, never."""

    def __init__(self, hangs: bool = False, **answers: Callable[..., Any]) -> None:
        self.asked: list[str] = []
        self._hangs, self._answers = hangs, answers
        self.future = self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*arguments: Any) -> Any:
            self.asked.append(method)
            if self._hangs:
                return Never()
            answer = self._answers.get(method, lambda *_: None)
            return cast(Any, Answer(lambda: answer(*arguments)))

        return call


class Answer:
    def __init__(self, give: Callable[[], Any]) -> None:
        self._give = give

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._give()


class FakeRun:
    """A run whose nodes are plain objects; a missing one is dead. Loops finish when they are asked to, unless they are
    among `waiting`."""

    def __init__(self, waiting: tuple[str, ...] = (), **nodes: Node) -> None:
        self.nodes, self._waiting = nodes, waiting
        self.supervisor = Supervisor()
        self.passed = 0.0

    def client(self, handle: Any) -> Any:
        if handle.name not in self.nodes:
            raise NodeDied(handle.name)
        return self.nodes[handle.name]

    def wait(self, seconds: float) -> None:
        self.passed += seconds

    def finished(self, handle: Any) -> bool:
        node = self.nodes.get(handle.name)
        return node is not None and not node._hangs and "finish" in node.asked and handle.name not in self._waiting


class Loop:
    def finish(self) -> None: ...


class Service:
    pass


def program(*loops: str) -> Program:
    made = Program()
    for name in ("metrics", "weights", "replay"):
        made.group(name, Role(name)).add(name, Service)
    for name in loops:
        made.group(name, Role(name)).add(name, Loop)
    return made


def ending_of(run: FakeRun, *loops: str) -> tuple[Ending, list[str]]:
    notes: list[str] = []
    return Ending(cast(Any, run), program(*loops), notes.append), notes


def test_every_loop_is_asked_to_finish_and_then_to_report_and_services_are_not() -> None:
    run = FakeRun(metrics=Node(), weights=Node(), actor=Node(), learner=Node())
    end, _ = ending_of(run, "actor", "learner")
    end.finish()
    assert run.nodes["actor"].asked == run.nodes["learner"].asked == ["finish", "report"]
    assert run.nodes["metrics"].asked == []
    assert end.silent == []
    assert run.passed < 0.1


def test_loops_that_wait_for_those_that_have_ended_are_not_waited_for_but_report() -> None:
    waiting = Node(doing=lambda: ("waiting for data", 7))
    run = FakeRun(waiting=("learner",), actor=Node(), learner=waiting)
    end, _ = ending_of(run, "actor", "learner")
    end.finish()
    assert waiting.asked[-1] == "report"
    assert end.silent == []
    assert ending.SETTLING <= run.passed < ending.LOOPS


def test_loops_that_work_are_given_time_for_their_present_step() -> None:
    run = FakeRun(waiting=("actor",), actor=Node(doing=lambda: ("environment", 7)))
    end, _ = ending_of(run, "actor")
    end.finish()
    assert run.passed >= 0.9 * ending.LOOPS


def test_a_loop_that_works_is_given_its_time_also_beside_one_that_waits() -> None:
    working, waiting = Node(doing=lambda: ("environment", 7)), Node(doing=lambda: ("waiting for data", 7))
    run = FakeRun(waiting=("actor", "learner"), actor=working, learner=waiting)
    end, _ = ending_of(run, "actor", "learner")
    end.finish()
    assert run.passed >= 0.9 * ending.LOOPS
    assert end.silent == []


def test_a_run_whose_nodes_hang_or_are_gone_ends_in_a_few_seconds_all_the_same() -> None:
    run = FakeRun(
        actor=Node(hangs=True), evaluator=Node(hangs=True), weights=Node(hangs=True), metrics=Node(hangs=True)
    )
    end, _ = ending_of(run, "actor", "evaluator", "learner")
    end.finish()
    assert end.silent == ["actor", "evaluator", "learner"]
    assert end.final_weights(confirmed=True) is None
    assert not end.evaluate(3, NEWEST)
    assert "report" not in run.nodes["actor"].asked  # who has not heard that it is over would not answer
    assert "evaluate_final" not in run.nodes["evaluator"].asked  # sending weights to a node that hangs would block
    assert end.snapshot(0) is None
    assert run.passed < 12.0


def test_what_breaks_while_everything_ends_keeps_nobody_from_saving() -> None:
    class Breaking(FakeRun):
        def wait(self, seconds: float) -> None:
            self.passed += seconds
            raise RuntimeError("no node can make progress")

    run = Breaking(waiting=("actor",), actor=Node(), weights=Node(newer=lambda than: (7, NEWEST)))
    end, _ = ending_of(run, "actor")
    end.finish()
    assert end.final_weights(confirmed=False) == (7, NEWEST)


def test_the_weights_that_were_confirmed_are_kept_not_what_became_of_them() -> None:
    run = FakeRun(weights=Node(newer=lambda than: (7, NEWEST)), evaluator=Node(confirmed=lambda: (5, CONFIRMED)))
    end, _ = ending_of(run, "evaluator")
    assert end.final_weights(confirmed=True) == (5, CONFIRMED)
    assert end.final_weights(confirmed=False) == (7, NEWEST)


def test_the_newest_weights_are_kept_when_the_evaluator_is_gone() -> None:
    end, _ = ending_of(FakeRun(weights=Node(newer=lambda than: (7, NEWEST))), "evaluator")
    assert end.final_weights(confirmed=True) == (7, NEWEST)


def test_there_may_be_no_weights_to_keep() -> None:
    assert ending_of(FakeRun())[0].final_weights(confirmed=False) is None
    assert ending_of(FakeRun(weights=Node(newer=lambda than: None)))[0].final_weights(confirmed=False) is None


@pytest.mark.parametrize("answer", [True, False])
def test_the_evaluator_says_whether_it_came_to_a_return_in_time(answer: bool) -> None:
    given: list[Any] = []

    def evaluate_final(*arguments: Any) -> bool:
        given.append(arguments)
        return answer

    end, _ = ending_of(FakeRun(evaluator=Node(evaluate_final=evaluate_final)), "evaluator")
    end.finish()
    assert end.evaluate(7, NEWEST) is answer
    assert given == [(7, NEWEST, ending.EVALUATION)]


def test_an_evaluation_that_takes_long_is_told_and_bounded() -> None:
    class Slow(Node):
        def evaluate_final(self, *arguments: Any) -> Any:
            return Never()

    run = FakeRun(evaluator=Slow())
    end, notes = ending_of(run, "evaluator")
    end.finish()
    assert not end.evaluate(7, NEWEST)
    assert notes == ["evaluating the weights that are saved (at most 10 s; Ctrl-C ends at once)"]
    assert run.passed < ending.EVALUATION + ending.ANSWERS + 1.0


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_ends_at_once(number: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        interrupts.started = True
        assert not interrupts.asked
        os.kill(os.getpid(), number)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_while_nodes_are_started_the_first_signal_ends_it(number: int) -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_a_run_under_nohup_stays_deaf_to_the_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.asked
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_under_nohup_stays_deaf_to_the_terminal_and_no_other_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(words: Any, started: float) -> int:
        os.kill(os.getpid(), getattr(signal, words[0]))
        return 0

    monkeypatch.setattr(cli, "_dispatch", send)
    assert [cli.main([name]) for name in ("SIGHUP", "SIGTERM")] == [INTERRUPTED] * 2
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert [cli.main([name]) for name in ("SIGHUP", "SIGTERM")] == [0, INTERRUPTED]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_takes_long_for_its_last_step_is_told_of_once() -> None:
    run = FakeRun(waiting=("learner",), actor=Node(), learner=Node(doing=lambda: ("learning", 7)))
    end, notes = ending_of(run, "actor", "learner")
    end.finish()
    assert notes == ["the run ends: learner has at most 7 s for the present step (Ctrl-C ends at once)"]
