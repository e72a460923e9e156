"""What goes wrong because of what the user asked for, as opposed to faults of the program."""

from __future__ import annotations


class UserError(Exception):
    """One clear sentence for the user, with the remedy; the command line prints it alone and exits with code 2."""


class Fault(RuntimeError):
    """Something went wrong while the run goes on, in one sentence that says what: where nothing else was raised before
    it, a traceback would say no more."""
