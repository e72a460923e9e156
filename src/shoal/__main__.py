"""`python -m shoal`, and the `shoal` command: Ctrl-C ends it with a word from the first moment on."""

from __future__ import annotations

import os
import sys
import threading


def main() -> int:
    """Run a command; returns the exit code."""
    try:
        from shoal.cli.streams import prepare

        prepare()
        from shoal.cli.main import main as command
    except KeyboardInterrupt:  # importing takes a moment
        print("interrupted", file=sys.stderr)
        return 130
    return _leave(command())


def _leave(code: int) -> int:
    """The exit code; at once where a thread was given up, which the interpreter's own end would abort with."""
    from shoal.types import GIVEN_UP

    if any(thread.name == GIVEN_UP for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
