"""How a run ends: every node reports once more, and the weights that are saved are evaluated.

Nothing here waits for long: a node that hangs is left to `close`, which kills it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from shoal.program import Future, Handle, Program, futures, offers
from shoal.runtime import Run
from shoal.types import Arrays, Role
from shoal.versions import NONE

LOOK = 0.02  # seconds between two looks at a run that ends
SETTLING = 0.3  # seconds in which a loop that waits for others would have gone on if it could
LOOPS = 2.0  # seconds that loops have for their present step
ANSWERS = 2.0  # seconds that a node has to answer
REPORTS = 5.0  # seconds that loops which have answered have for their last report
EVALUATION = 10.0  # seconds that the final evaluation may take
PATIENCE = 1.0  # seconds of silence before the user is told what is waited for
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP (a closed terminal) ask for an orderly end; a second one ends at once.

    Before `started` there is nothing to save: the first one raises `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self.asked = self.started = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only there can signals be handled
            for number in SIGNALS:
                before = signal.getsignal(number)
                if number == signal.SIGINT or before is not signal.SIG_IGN:  # nohup wants it ignored
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            _leave_terminal()
        again, self.asked = self.asked, True
        if again or not self.started:
            raise KeyboardInterrupt


def _leave_terminal() -> None:
    """What is printed from now on goes nowhere: writing to a terminal that was closed is an error."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and stream.isatty():
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@dataclass(frozen=True)
class Final:
    """The weights with which a run ends."""

    version: int
    weights: Arrays


class Ending:
    """The last calls to a run's nodes, of which any may be gone or hang."""

    def __init__(self, run: Run, program: Program, note: Callable[[str], None]) -> None:
        self._run, self._program, self._note = run, program, note
        self.supervisor = run.supervisor
        self._loops = [name for name, node in program.nodes.items() if offers(node.factory, "finish")]
        self.silent: list[str] = []  # loops that have not reported

    def finish(self) -> None:
        """Have every loop end with its present step, and report what it has counted, also where it waits for ever for
        others that have ended."""
        asked = self._ask_all("finish", self._loops)
        left, passed, quiet, told = set(asked), 0.0, 0.0, False
        while left and passed < LOOPS:
            self._pass_time()
            ended = {name for name in left if self._run.finished(Handle(name))}
            left -= ended
            passed, quiet = passed + LOOK, 0.0 if ended else quiet + LOOK
            if left and passed >= PATIENCE and not told:
                told = True
                self._note(
                    f"the run ends: {', '.join(sorted(left))} has at most {LOOPS + REPORTS:.0f} s for the present step "
                    "(Ctrl-C ends at once)"
                )
            if quiet >= SETTLING:
                if self._all_wait(left):
                    break
                quiet = 0.0
        alive = [name for name, call in asked.items() if done(call)]
        reports = self._ask_all("report", alive)
        self.silent = sorted({*self._loops} - {name for name, _ in self._answers(reports, REPORTS)})

    def final_weights(self, confirmed: bool) -> tuple[int, Arrays] | None:
        """The weights that were confirmed to reach the target, else the newest, as far as anybody still has them."""
        if confirmed:  # the learner has gone on since, not always for the better
            found = self._call(self._program.find(Role.EVALUATOR), "confirmed")
            if found is not None:
                return found[0], found[1]
        found = self._call(self._program.find(Role.WEIGHTS), "newer", NONE)
        return None if found is None else (found[0], found[1])

    def evaluate(self, version: int, weights: Arrays) -> bool:
        """Whether the evaluator has come to a return of these weights in time."""
        evaluator = self._program.find(Role.EVALUATOR)
        if evaluator is None or evaluator.name in self.silent:
            return False
        call = self._ask(evaluator.name, "evaluate_final", version, weights, EVALUATION)
        calls = {} if call is None else {evaluator.name: call}
        said = f"evaluating the weights that are saved (at most {EVALUATION:.0f} s; Ctrl-C ends at once)"
        answers = self._answers(calls, EVALUATION + ANSWERS, said)
        return bool(answers and answers[0][1] is True)

    def snapshot(self, evaluations_from: int) -> dict[str, Any] | None:
        """The metrics as they are when everything has been reported."""
        found: dict[str, Any] | None = self._call(self._program.find(Role.METRICS), "snapshot", evaluations_from)
        return found

    # ---- calls that may never be answered

    def _pass_time(self) -> None:
        try:
            self._run.wait(LOOK)
        except Exception:
            pass  # what breaks while everything ends would have been ended anyway

    def _all_wait(self, names: Iterable[str]) -> bool:
        """Whether these loops wait for others, or do not answer at all."""
        answers = self._answers(self._ask_all("doing", names), SETTLING)
        return all(answer[0].startswith("waiting") for _, answer in answers if isinstance(answer, tuple))

    def _call(self, node: Handle | None, method: str, *arguments: Any) -> Any:
        if node is None:
            return None
        call = self._ask(node.name, method, *arguments)
        answers = [] if call is None else self._answers({node.name: call}, ANSWERS)
        return answers[0][1] if answers else None

    def _ask_all(self, method: str, names: Iterable[str]) -> dict[str, Future]:
        calls = {name: self._ask(name, method) for name in names}
        return {name: call for name, call in calls.items() if call is not None}

    def _ask(self, name: str, method: str, *arguments: Any) -> Future | None:
        try:
            call: Future = getattr(futures(self._run.client(Handle(name))), method)(*arguments)
            return call
        except Exception:
            return None  # it is gone

    def answers(self, calls: dict[str, Future]) -> dict[str, Any]:
        """Those of calls that come in time, by name."""
        return dict(self._answers(calls, ANSWERS))

    def _answers(self, calls: dict[str, Future], seconds: float, said: str | None = None) -> list[tuple[str, Any]]:
        """Those that come within `seconds`; an error is none."""
        left, answers, passed = dict(calls), [], 0.0
        while True:
            for name in [name for name, call in left.items() if done(call)]:
                try:
                    answers.append((name, left.pop(name).result()))
                except Exception:
                    pass
            if not left or passed >= seconds:
                return answers
            self._pass_time()
            passed += LOOK
            if said is not None and passed >= PATIENCE:
                self._note(said)
                said = None


def done(call: Future) -> bool:
    """Whether its answer is there, or an error."""
    try:
        return call.done()
    except Exception:
        return True  # and `result` says why
