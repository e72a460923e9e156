"""Small nodes with which the contract tests probe a runtime. Node processes import this file, so it imports little."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from shoal import buffers
from shoal.program import current
from shoal.sync import Condition, monotonic


class Unpicklable(Exception):
    """An exception that cannot be sent."""

    def __init__(self) -> None:
        super().__init__("kept at home")
        self.lock = threading.Lock()


class Service:
    """Answers, waits, raises and remembers."""

    restart = False

    def __init__(self) -> None:
        self._changed = Condition()
        self._open = False
        self._waiting = 0
        self._log: list[Any] = []
        self._built_in = current()

    def echo(self, value: Any) -> Any:
        return value

    def threads(self) -> int:
        """That torch computes with here."""
        import torch

        return torch.get_num_threads()

    def total(self, values: Any) -> float:
        return float(np.sum(values))

    def filled(self, shape: tuple[int, ...], value: float) -> Any:
        """A large result in the memory that the caller sees."""
        result = buffers.empty(shape, np.float32)
        result[...] = value
        return result

    def append(self, value: Any) -> int:
        with self._changed:
            self._log.append(value)
            return len(self._log)

    def log(self) -> list[Any]:
        with self._changed:
            return self._log

    def forget(self) -> None:
        with self._changed:
            self._log, self._open = [], False

    def hold(self, timeout: float | None = None) -> tuple[bool, float]:
        """Wait until `release`: whether it came, and after how long."""
        with self._changed:
            start = monotonic()
            self._waiting += 1
            self._changed.notify_all()
            try:
                came = self._changed.wait_for(lambda: self._open, timeout, "the release")
            finally:
                self._waiting -= 1
            return came, monotonic() - start

    def release(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def held(self, count: int) -> bool:
        """Wait until so many callers wait in `hold`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting >= count, 30.0, f"{count} callers to wait")

    def fail(self, message: str) -> None:
        raise KeyError(message)

    def fail_with_what_cannot_be_sent(self) -> None:
        raise Unpicklable

    def answer_with_what_cannot_be_sent(self) -> Any:
        return threading.Lock()

    def who(self) -> dict[str, Any]:
        here, built_in = current(), self._built_in
        return {"name": here.name, "seed": here.seed, "restarts": here.restarts, "same": here == built_in}

    def pid(self) -> int:
        return os.getpid()

    def torch_threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def _private(self) -> str:
        return "not for others"


class Caller:
    """Makes calls on behalf of a test. Its services arrive nested in lists, tuples and dictionaries."""

    def __init__(self, services: dict[str, Any]) -> None:
        self._service = services["nested"][0]["service"]
        self._same = services["tuple"][1]

    def through(self, method: str, *args: Any) -> Any:
        return getattr(self._service, method)(*args)

    def futures(self, method: str, values: list[Any]) -> list[Any]:
        answers = [getattr(self._same.future, method)(value) for value in values]
        return [answer.result() for answer in answers]


class Clock:
    """Steps for ever; counts its steps."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps % 100 == 0:
            time.sleep(0.001)  # a node that never waits would keep a core busy

    def steps(self) -> int:
        return self._steps


class Finite:
    """Stops by itself after some steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self) -> bool:
        self._left -= 1
        return self._left > 0

    def left(self) -> int:
        return self._left


class Leaver:
    """Calls `sys.exit`, as an environment might when its window is closed."""

    def step(self) -> None:
        sys.exit(0)


class Panic(BaseException):
    """As those of Rust extensions, and asyncio's CancelledError: no `Exception`."""


class Panics:
    def step(self) -> None:
        raise Panic("index out of bounds")


class Faulty:
    """Reports each life to a service and raises in its first `lives` lives."""

    restart = True

    def __init__(self, service: Any, lives: int, where: str = "step") -> None:
        self._service, self._raise = service, current().restarts < lives
        service.append((current().name, current().restarts, current().seed))
        self._where = where
        if where == "build":
            self._fail()

    def step(self) -> None:
        if self._where == "step":
            self._fail()
        time.sleep(0.01)

    def life(self) -> int:
        return current().restarts

    def _fail(self) -> None:
        if self._raise:
            raise ValueError(f"fault of life {current().restarts}")


class Essential(Faulty):
    """As Faulty, but the run cannot go on without it."""

    restart = False


class Dependent:
    """Waits in a service for ever, as a learner waits for data; leaves a trace when it is closed."""

    def __init__(self, service: Any, trace: str | None = None) -> None:
        self._service, self._trace = service, trace

    def step(self) -> None:
        self._service.hold()

    def close(self) -> None:
        if self._trace is not None:
            Path(self._trace).write_text("closed")


class Visitor:
    """Calls a node that may be restarted again and again, and survives its deaths."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def visit(self) -> int | None:
        try:
            return int(self._other.life())
        except ConnectionError:
            return None


class Asker:
    """Calls many services."""

    def __init__(self, services: list[Any]) -> None:
        self._services = services

    def ask_all(self) -> list[int]:
        return [service.echo(index) for index, service in enumerate(self._services)]


class Talkative:
    """Prints, in its own words and in those of a library."""

    def __init__(self) -> None:
        print("hello from a node")
        warnings.warn("something is deprecated", DeprecationWarning, stacklevel=1)
        os.write(2, b"from below\n")

    def echo(self, value: int) -> int:
        return value
