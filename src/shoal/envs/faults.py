"""What the user's environment does wrong, as one sentence that names the environment and the place."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium

from shoal.errors import Fault, UserError

_NOT_THE_USERS = (*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")), "<frozen")
_OURS = str(Path(__file__).parent)


class EnvFault(Fault):
    """An environment raised or broke its own promise: one sentence that names the environment, the field, the value.

    In an actor it costs that actor; whoever describes an environment tells it to the user.
    """


@contextmanager
def told_as_a_fault(environment: str, doing: str) -> Iterator[None]:
    """Whatever the environment raises becomes an `EnvFault`, except what is a sentence already or names a package."""
    try:
        yield
    except (UserError, EnvFault, ModuleNotFoundError, gymnasium.error.DependencyNotInstalled, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of a Rust extension is no Exception
        raise EnvFault(f"{environment} could not be {doing}: {what_was_raised(error)}.") from error


def what_was_raised(error: BaseException) -> str:
    """'ValueError: no such map (my_env.py, line 12)': the place is the innermost one in the user's own code."""
    said = " ".join(str(error).split()).rstrip(".")
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    own = [frame for frame in outside if not frame.filename.startswith(_NOT_THE_USERS)]
    place = (own or outside)[-1:]
    where = f" ({Path(place[0].filename).name}, line {place[0].lineno})" if place else ""
    return f"{type(error).__name__}{': ' if said else ''}{said}{where}"
