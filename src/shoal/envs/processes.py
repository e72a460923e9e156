"""`--vectorizer async`: every environment in a process of its own; one that crashes or hangs is replaced alone.

Each process steps a vector of one (`InProcess`), so that autoreset, checks and state are the same code. Worth it when a
step takes longer than about a millisecond, and for simulators that are not trusted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import numpy as np

from shoal import tree
from shoal.envs.faults import EnvFault, what_was_raised
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, REPLACED, RESET_REWARD
from shoal.envs.state import NoState
from shoal.envs.vectorizers import InProcess, Losses, MakeOne, fault_of, not_finite, spread
from shoal.errors import UserError
from shoal.types import Array

LOOK_FOR_PARENT = 1.0  # seconds
REFUSED = "refused"  # an answer: the environment goes on
_RAISED: dict[str, type[Exception]] = {
    "UserError": UserError,
    "NoState": NoState,
}  # what is raised here as it was there


class Lost(Exception):
    """A process has ended, or has not answered in time: why."""


class SubProcesses:
    """A vector of environments, each in its own process. A step that takes longer than `timeout` seconds (0: no limit)
    or ends the process costs that environment's episode: a new one takes its place. So does, where it `replaces`, one
    that raises or gives what it may not."""

    def __init__(self, makers: Sequence[MakeOne], environment: str) -> None:
        self.timeout = 0.0
        self.num_envs = len(makers)
        self.replaces = False
        self._makers, self._environment = list(makers), environment
        self._losses = Losses(environment)
        self.losses = self._losses.told
        self._processes: list[_Process] = []
        try:
            self._processes = [_Process(make, environment) for make in self._makers]
            spaces = [process.answer() for process in self._processes]
        except Lost as lost:
            self.close()
            raise EnvFault(f"{environment}: an environment's process {lost} while it was made.") from None
        except BaseException:
            self.close()
            raise
        self.single_observation_space, self.single_action_space = spaces[0]
        if odd := [number for number, pair in enumerate(spaces) if pair != spaces[0]]:
            self.close()
            raise EnvFault(
                f"{environment}: environment number {odd[0]} has other spaces than number 0: {spaces[odd[0]]}."
            )

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        seeds: list[int | None] = [None] * self.num_envs if seed is None else [*spread(seed, self.num_envs)]
        for process, each in zip(self._processes, seeds):
            process.ask("reset", each)
        answers = self._answers(None, self.replaces)
        for number in range(self.num_envs):
            if answers[number] is None:
                answers[number] = self._replace(number)
        self._replace_what_is_not_finite(answers, np.zeros(self.num_envs, np.float32))
        return _gathered(answers), {}

    def step(self, actions: Array, /) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        for process, action in zip(self._processes, actions):
            process.ask("step", action)
        answers = self._answers(self.timeout or None, self.replaces)
        reward, ends = np.zeros(self.num_envs, np.float32), np.zeros((2, self.num_envs), np.bool_)
        infos: dict[str, Any] = {}
        replaced = [number for number, answer in enumerate(answers) if answer is None]
        for number, answer in enumerate(answers):
            if answer is None:
                answers[number] = self._replace(number)
                continue
            _, (reward[number],), (ends[0, number],), (ends[1, number],), info = answer
            for name in (LIFE_LOST, RESET_REWARD, ENDED_AT_RESET):
                if name in info:
                    infos.setdefault(name, np.zeros(self.num_envs, info[name].dtype))[number] = info[name][0]
        replaced += self._replace_what_is_not_finite(answers, reward)
        if replaced:
            infos[REPLACED] = np.isin(np.arange(self.num_envs), replaced)
        self._losses.stepped(infos.get(REPLACED))
        return _gathered(answers), reward, ends[0], ends[1], infos

    def state_dict(self) -> dict[str, Any]:
        for process in self._processes:
            process.ask("state_dict")
        return {"envs": self._all_answers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for process, part in zip(self._processes, state["envs"], strict=True):
            process.ask("load_state_dict", part)
        self._all_answers()

    def close(self) -> None:
        for process in self._processes:
            process.ask("close")
        deadline = time.monotonic() + 1.0
        for process in self._processes:
            process.end(max(0.0, deadline - time.monotonic()))

    def _answers(self, timeout: float | None, replaces: bool) -> list[Any]:
        """One of each; None of those that were lost. What an environment raised is raised when all have answered, or is
        a loss, too, where it `replaces`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = {process.connection: number for number, process in enumerate(self._processes)}
        answers: list[Any] = [None] * self.num_envs
        raised: Exception | None = None
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready: list[Any] = wait(list(waiting), left)
            if not ready:
                for number in waiting.values():
                    self._lose(number, f"did not come back from a step within {timeout:g} s")
                break
            for connection in ready:
                number = waiting.pop(connection)
                try:
                    answers[number] = self._processes[number].answer()
                except Lost as lost:
                    self._lose(number, str(lost))
                except Exception as error:
                    if replaces and isinstance(error, EnvFault):
                        self._lose(number, fault_of(error, self._environment))
                    else:
                        raised = raised or error
        if raised is not None:
            raise raised
        return answers

    def _lose(self, number: int, why: str) -> None:
        self._processes[number].end(0.0)
        self._losses.add(number, why)

    def _replace(self, number: int) -> Any:
        """The first row of a new environment in the place of one that was lost."""
        while True:
            process = self._processes[number] = _Process(self._makers[number], self._environment)
            try:
                process.answer()
                process.ask("reset", int.from_bytes(os.urandom(3), "little"))  # not the episode that it died in, again
                return process.answer()
            except Lost as lost:
                self._lose(number, f"{lost} when it began anew")
            except EnvFault as fault:
                if not self.replaces:
                    raise
                self._lose(number, f"{fault_of(fault, self._environment)}, when it began anew")

    def _replace_what_is_not_finite(self, answers: list[Any], reward: Array) -> list[int]:
        """The numbers of those whose rows were; their first rows take the place."""
        replaced: list[int] = []
        while self.replaces and (faults := not_finite(tree.flatten(_gathered(answers), "observation"), reward)):
            for number, fault in faults.items():
                self._lose(number, fault_of(fault, self._environment))
                answers[number], reward[number] = self._replace(number), 0.0
                replaced.append(number)
        return replaced

    def _all_answers(self) -> list[Any]:
        """Of what is not a step: nobody is replaced for it."""
        before = len(self.losses)
        answers = self._answers(None, replaces=False)
        if len(self.losses) > before:
            raise EnvFault(self.losses.pop())
        return answers


def _gathered(answers: list[Any]) -> Any:
    """The observations, with which each answer begins."""
    return tree.map(lambda *rows: np.concatenate(rows), *(answer[0] for answer in answers))


class _Process:
    """One environment elsewhere: `ask` and then `answer`."""

    def __init__(self, make: MakeOne, environment: str) -> None:
        context: Any = multiprocessing.get_context("fork" if hasattr(os, "fork") else None)
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(cloudpickle.dumps(make), environment, theirs, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()  # so that its end is seen

    def ask(self, method: str, argument: Any = None) -> None:
        try:
            self.connection.send((method, argument))
        except OSError:  # it has ended: the answer will say so
            pass

    def answer(self) -> Any:
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(1.0)
            code = self._process.exitcode
            ended = (
                f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
            )
            raise Lost(ended) from None
        if kind == "answer":
            return value
        raise _RAISED.get(kind, EnvFault)(value)

    def end(self, patience: float) -> None:
        """Let it close its environment for so many seconds, and then kill it."""
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


# ---- in the process of an environment


def _serve(make: bytes, environment: str, connection: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    made: list[InProcess] = []
    try:
        kind, value = _reply(made, environment, "make", make)
        connection.send((kind, value))
        while kind in ("answer", "NoState", REFUSED):  # after anything else nobody knows where it stands
            method, argument = connection.recv()
            if method == "close":
                break
            kind, value = _reply(made, environment, method, argument)
            connection.send((kind, value))
    except (EOFError, OSError):  # the parent has ended, or closed the connection
        pass
    if made:
        made[0].close()


def _reply(made: list[InProcess], environment: str, method: str, argument: Any) -> tuple[str, Any]:
    """What kind of answer it is, and the answer or a sentence."""
    try:
        return "answer", _called(made, environment, method, argument)
    except NoState as reason:
        return "NoState", str(reason)
    except EnvFault as fault:
        return REFUSED if method == "load_state_dict" else "EnvFault", str(fault)
    except UserError as error:
        return "UserError", str(error)
    except BaseException as error:  # a panic of a Rust extension is no Exception
        return "EnvFault", f"{environment} raised {what_was_raised(error)}."


def _called(made: list[InProcess], environment: str, method: str, argument: Any) -> Any:
    if method == "make":
        made.append(InProcess([cloudpickle.loads(argument)], environment))
        return made[0].single_observation_space, made[0].single_action_space
    vector = made[0]
    if method == "reset":
        return vector.reset(seed=argument)
    if method == "step":
        return vector.step(np.asarray(argument)[np.newaxis])
    return vector.state_dict() if method == "state_dict" else vector.load_state_dict(argument)


def _end_with(parent: int) -> None:
    """Do not outlive the process whose environment this is."""
    while os.getppid() == parent:
        time.sleep(LOOK_FOR_PARENT)
    os._exit(1)
