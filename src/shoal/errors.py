"""What goes wrong because of what the user asked for, as opposed to faults of the program."""

from __future__ import annotations


class UserError(Exception):
    """One clear sentence for the user, with the remedy; the command line prints it alone and exits with code 2."""
