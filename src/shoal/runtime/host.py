"""What every runtime does around a node's object: prepare the process, drive `step`, end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal import sync
from shoal.errors import Fault, UserError
from shoal.program import Context, NodeDied, set_current
from shoal.runtime.supervision import Lost

LONGEST_SENTENCE, LONGEST_TRACEBACK = 1_000, 20_000  # characters that are told of an error
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
BEAT = 1.0  # seconds between two signs of life
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def single_threaded_environment() -> dict[str, str]:
    """This process's environment with one computing thread per process, unless the user set a number."""
    return {**dict.fromkeys(THREAD_VARIABLES, "1"), **os.environ}


def keep_memory() -> None:
    """Let glibc keep what was freed. It would give the pages of every large tensor back and fault them in again with
    the next update: 36,000 faults a second in a learner, a tenth of its time."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 25)  # the most that glibc takes


def name_process(name: str) -> None:
    """Have `ps` and `top` show a node's name (the kernel keeps 15 letters of it)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # Linux only
        comm.write(name[:15])


def prepare(context: Context, threads: int = 1) -> None:
    """Seed the global generators (for user code that uses them) and keep torch to its threads."""
    set_current(context)
    random.seed(context.seed)
    np.random.seed(context.seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
        torch.manual_seed(context.seed)
    elif threads > 1:  # whoever imports it later finds this
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))


def generator_states() -> dict[str, Any]:
    """The state of the global generators, as plain data."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {"numpy": [kind, keys, *rest], "python": [version, list(numbers), gauss]}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
    return states


def load_generator_states(states: Mapping[str, Any]) -> None:
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys, *rest))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if (torch := sys.modules.get("torch")) is not None and "torch" in states:
        torch.set_rng_state(states["torch"])


class Heart:
    """Tells of a node's life from a thread of its own: steps completed, and how long its code is in one of them."""

    def __init__(self) -> None:
        self._activity = sync.Activity()
        self._target: Any = None
        self._seen = (0, 0)
        self._busy = 0.0
        self._looked = time.monotonic()

    def drive(self, target: Any, stopping: Callable[[], bool]) -> bool:
        """Call `step`, where there is one, until it returns False: True then, and False when the run stops. An error
        while stopping is the stop's own doing."""
        activity, self._target = self._activity, target
        if not callable(getattr(target, "step", None)):
            return False
        sync.set_activity(activity)
        activity.driving = True
        try:
            while not stopping():
                if target.step() is False:
                    return True
                activity.steps += 1
        except Exception:
            if not stopping():
                raise
        finally:
            activity.driving = False
            sync.set_activity(None)
        return False

    @property
    def progress(self) -> int | None:
        """How far the node has got: what it says itself (`progress`), else its steps; None when it makes none."""
        if self._target is None:
            return 0
        if not hasattr(self._target, "step"):
            return None
        return int(getattr(self._target, "progress", self._activity.steps))

    def beat(self, period: float = BEAT) -> tuple[int | None, float, str]:
        """(progress, busy, doing): to be called every `period` seconds. Time in which this process stood still does not
        count, and neither does time that the node waits for others."""
        now, activity = time.monotonic(), self._activity
        seen = (activity.steps, activity.signs)
        if activity.driving and not activity.waiting and seen == self._seen:
            self._busy += min(now - self._looked, 2 * period)
        else:
            self._busy = 0.0
        self._looked, self._seen = now, seen
        return self.progress, self._busy, self._doing()

    def _doing(self) -> str:
        """What the node says that it is in the middle of, where it can (`loops.loop.Loop.doing`)."""
        doing = getattr(self._target, "doing", None)
        try:
            return f"it was at {doing()[0]!r}" if callable(doing) else ""
        except Exception:  # a user's own, which means something else
            return ""


def failure(name: str, error: BaseException, progress: int | None) -> Lost:
    """What a node tells of the error that ends it."""
    said = f"raised {''.join(traceback.format_exception_only(error)).splitlines()[0]}"
    if isinstance(error, Fault):
        said = f"failed: {error}"
    told = isinstance(error, Fault) and error.__cause__ is None
    return Lost(
        name,
        legible(said.removesuffix("."), LONGEST_SENTENCE),
        None if told else legible("".join(traceback.format_exception(error)), LONGEST_TRACEBACK),
        secondary=isinstance(error, NodeDied),
        user_error=legible(str(error), LONGEST_TRACEBACK) if isinstance(error, UserError) else None,
        progress=progress,
        raised=True,
    )


def legible(text: str, most: int) -> str:
    """What may be shown in a terminal of what a user's code has said: its control characters do nothing, and of a text
    that is longer than `most` characters the middle is left out."""
    if len(text) > most:
        text = f"{text[: most // 2]} [… {len(text) - most:,} characters …] {text[-(most // 2) :]}"
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def close(target: Any) -> None:
    """Let a node release what it holds; a service's `close` also wakes everybody who waits in it."""
    if callable(getattr(target, "close", None)):
        target.close()


def close_quietly(target: Any) -> None:
    """As `close`, for a node that has failed already: what goes wrong now would hide the cause."""
    with contextlib.suppress(Exception):
        close(target)
