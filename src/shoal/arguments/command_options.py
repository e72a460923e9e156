"""Options of `shoal train` and `shoal resume` beside those of a run (`RunOptions`) and of an algorithm's config."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Output:
    """How results are told."""

    json: bool = False
    """Progress goes to stderr; the last line of stdout is one JSON object."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """A run that goes on and was not made on this account."""

    trust: bool = False
    """Let it run the code that it names: its algorithm, environment, network. Asked once."""
