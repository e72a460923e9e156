"""`python -m shoal`, and the `shoal` command: Ctrl-C ends it with a word from the first moment on."""

from __future__ import annotations

import sys


def main() -> int:
    """Run a command; returns the exit code."""
    try:
        from shoal.cli.streams import prepare

        prepare()
        from shoal.cli.main import main as command
    except KeyboardInterrupt:  # importing takes a moment
        print("interrupted", file=sys.stderr)
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
