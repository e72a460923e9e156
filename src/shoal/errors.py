"""What goes wrong because of what the user asked for, as opposed to faults of the program, and how it is said."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable

NEAR = 0.6  # how alike two words are before one is suggested for the other


class UserError(Exception):
    """One clear sentence for the user, with the remedy; the command line prints it alone and exits with code 2."""


class Fault(RuntimeError):
    """Something went wrong while the run goes on, in one sentence that says what: where nothing else was raised before
    it, a traceback would say no more."""


def did_you_mean(name: str, candidates: Iterable[str], *, most: int = 1, cutoff: float = NEAR) -> str:
    """ " Did you mean …?", or nothing when nothing is near."""
    by_lower_case = {candidate.lower(): candidate for candidate in candidates if not candidate.startswith("__")}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=most, cutoff=cutoff)
    return f" Did you mean {' or '.join(by_lower_case[one] for one in near)}?" if near else ""


def name_of(factory: object) -> str:
    """How an environment, a network or another factory is called in sentences: as it was typed, or by its own name."""
    if isinstance(factory, str):
        return factory
    if isinstance(factory, functools.partial):
        return name_of(factory.func)
    return str(getattr(factory, "__name__", type(factory).__name__))
