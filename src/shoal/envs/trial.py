"""Trying the user's code in a process of its own: what ends that process is told, and nothing else ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO, NoReturn

import cloudpickle

from shoal.envs.describing import describe_here
from shoal.envs.faults import what_was_raised
from shoal.envs.names import Environment
from shoal.envs.spec import EnvOptions, EnvSpec, Vectorizer
from shoal.errors import UserError, name_of

PATIENCE = 20.0  # seconds after which it is said that an environment does not come back
FAREWELL = 2.0  # seconds in which what an environment has started is ended
_PR_SET_CHILD_SUBREAPER = 36
LOOK = 0.05  # seconds between two looks at what it has answered
_CHILD = """
import importlib, pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
module, function, *descriptors = sys.argv[1:]
question, answer = (open(int(descriptor), mode) for descriptor, mode in zip(descriptors, ("rb", "wb")))
sys.path[:] = pickle.load(question)
getattr(importlib.import_module(module), function)(question, answer)
"""
Wait = Callable[["subprocess.Popen[bytes]", int], int | None]  # of a child and of the file that it answers in


def describe_apart(
    env: Environment,
    options: EnvOptions | None,
    vectorizer: Vectorizer,
    evaluation_options: EnvOptions | None,
    device: str = "cpu",
) -> EnvSpec:
    """`describe` in a new process, which takes 0.3 s. What cannot be sent to one is described here."""
    question = (env, options, vectorizer, evaluation_options, device)
    try:
        pickled = cloudpickle.dumps(question)
    except Exception:
        return describe_here(*question)
    code, answer = ask(reply, pickled, lambda child, _: _patiently(child, name_of(env)))
    if not answer:
        raise UserError(f"{name_of(env)} {ending(code)}: run it by itself to see why.")
    found: EnvSpec | str | None = pickle.loads(answer)
    if found is None:
        return describe_here(*question)
    if isinstance(found, str):
        raise UserError(found)
    evaluation = replace(found.evaluation, env=env) if found.evaluation else None
    return replace(found, env=env, evaluation=evaluation)


def ask(replies: Callable[[BinaryIO, BinaryIO], None], question: bytes, wait: Wait) -> tuple[int | None, bytes]:
    """How the child ended, in which a function of a module replies, and what it wrote; None: it was not waited for any
    longer. Files instead of pipes: nobody who inherits them can keep us waiting. What the user's code has started ends
    with it."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
        asked.write(pickle.dumps(sys.path) + question)
        asked.seek(0)
        files = (asked.fileno(), answered.fileno())
        command = [sys.executable, "-P", "-c", _CHILD, replies.__module__, replies.__name__, *map(str, files)]
        with subprocess.Popen(
            command, pass_fds=files, stdin=subprocess.PIPE, stdout=sys.__stderr__, process_group=0
        ) as child:
            try:
                code = wait(child, answered.fileno())
            finally:
                _end(child)
        answered.seek(0)
        return code, answered.read()


def while_it_answers(
    child: subprocess.Popen[bytes], answered: int, silence: float, heard: Callable[[], None] = lambda: None
) -> int | None:
    """A way to wait: for as long as it writes something every `silence` seconds; `heard` is called where it has."""
    size, since = 0, time.monotonic()
    while True:
        try:
            code: int | None = child.wait(LOOK)
        except subprocess.TimeoutExpired:
            code = None
        written = os.fstat(answered).st_size
        if written > size:
            size, since = written, time.monotonic()
            heard()
        if code is not None or time.monotonic() - since > silence:
            return code


def _end(child: subprocess.Popen[bytes]) -> None:
    """It ends by itself when nobody listens, with all that it has started; its group is killed where it does not."""
    assert child.stdin is not None
    child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(FAREWELL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _patiently(child: subprocess.Popen[bytes], name: str) -> int:
    """How it ended. A large simulator may take minutes to be made, and one that hangs looks the same: it is said."""
    try:
        return child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        print(
            f"{name} is being made, reset and stepped once, and has not come back for {PATIENCE:.0f} s; still "
            "waiting (Ctrl-C ends it)",
            file=sys.stderr,
            flush=True,
        )
        return child.wait()


def ending(code: int | None) -> str:
    """How a process ended in which something was tried, in words."""
    if code is None:
        return "did not come back while it was tried"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name} while it was tried"
    return f"ended the process in which it was tried, with exit code {code}"


# In the child


def reply(question: BinaryIO, answer: BinaryIO) -> None:
    """Answer with the description, with a sentence, or with None where the question cannot be understood here."""
    begin()
    found: EnvSpec | str | None
    try:
        asked = pickle.load(question)
    except Exception:
        found = None
    else:
        try:
            found = describe_here(*asked)
        except UserError as error:
            found = str(error)
        except BaseException as error:  # also KeyboardInterrupt is its own: nobody's Ctrl-C comes here
            found = f"{name_of(asked[0])} could not be used: {what_was_raised(error)}."
    answer.write(cloudpickle.dumps(found))
    leave(answer)


def begin() -> None:
    """The first thing that a child does: what it starts ends with it, and it ends with its parent."""
    _leave_a_reaper()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def leave(answer: BinaryIO) -> NoReturn:
    """The last thing that a child does, whatever threads the user's code has left."""
    answer.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _leave_a_reaper() -> None:
    """Go on in a new process. This one waits for it, however it ends, kills what it has left behind, also what has
    left its process group and lost its parent, and ends in the same way."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        return
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while children := _children():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.waitpid(-1, 0)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(0, code))


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel that does not tell
        return []


def _end_with_the_parent() -> None:
    os.read(0, 1)
    os._exit(1)
