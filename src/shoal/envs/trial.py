"""Trying the user's environment in a process of its own: what ends that process is told, and nothing else ends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from typing import BinaryIO

import cloudpickle

from shoal.envs.describing import describe_here
from shoal.envs.names import Environment, name_of
from shoal.envs.spec import EnvOptions, EnvSpec, Vectorizer
from shoal.errors import UserError

_CHILD = """
import pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
question, answer = (open(int(descriptor), mode) for descriptor, mode in zip(sys.argv[1:], ("rb", "wb")))
sys.path[:] = pickle.load(question)
from shoal.envs.trial import reply
reply(question, answer)
"""


def describe_apart(
    env: Environment, options: EnvOptions | None, vectorizer: Vectorizer, evaluation_options: EnvOptions | None
) -> EnvSpec:
    """`describe` in a new process, which takes 0.3 s. What cannot be sent to one is described here."""
    question = (env, options, vectorizer, evaluation_options)
    try:
        pickled = cloudpickle.dumps(question)
    except Exception:
        return describe_here(*question)
    code, answer = _ask(pickle.dumps(sys.path) + pickled)
    if not answer:
        raise UserError(f"{name_of(env)} {_ending(code)}: run it by itself to see why.")
    found: EnvSpec | str | None = pickle.loads(answer)
    if found is None:
        return describe_here(*question)
    if isinstance(found, str):
        raise UserError(found)
    evaluation = replace(found.evaluation, env=env) if found.evaluation else None
    return replace(found, env=env, evaluation=evaluation)


def _ask(question: bytes) -> tuple[int, bytes]:
    """How the child ended and what it wrote. Files instead of pipes: nobody who inherits them can keep us waiting."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
        asked.write(question)
        asked.seek(0)
        files = (asked.fileno(), answered.fileno())
        command = [sys.executable, "-c", _CHILD, *map(str, files)]
        with subprocess.Popen(command, pass_fds=files, stdin=subprocess.PIPE, stdout=sys.__stderr__) as child:
            try:
                code = child.wait()
            finally:
                child.kill()
        answered.seek(0)
        return code, answered.read()


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name} while it was tried"
    return f"ended the process in which it was tried, with exit code {code}"


# In the child


def reply(question: BinaryIO, answer: BinaryIO) -> None:
    """Answer with the description, with a sentence, or with None where the question cannot be understood here."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
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
    answer.write(cloudpickle.dumps(found))
    answer.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads the environment has left


def _end_with_the_parent() -> None:
    os.read(0, 1)
    os._exit(1)
