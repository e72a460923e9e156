"""Standard streams as a command finds them: closed, full, or of an encoding that lacks our signs."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PLAIN = {"…": "...", "–": "-", "—": "-", "−": "-", "±": "+-", "→": "->", "×": "x", "·": ".", "≥": ">=", "≤": "<="}


class Unfailing(io.TextIOWrapper):
    """Standard error: what cannot be written is dropped, since a run must not end for want of somebody who reads."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            pass


def prepare() -> None:
    """Open what is closed, before another file takes its descriptor; write signs in letters where need be."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free
    codecs.register_error("plain", _plain)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="plain")
    raw = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    sys.stderr = Unfailing(raw, encoding=encoding, errors="plain", write_through=True)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def unwritable() -> bool:
    """Whether standard output cannot be written (`> /dev/full`); nothing more is then written there."""
    try:
        os.write(1, b"\n")
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return True
    return False


@contextmanager
def kept() -> Iterator[None]:
    """The streams are again what they were: an environment in this process may replace or lose them."""
    before = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
