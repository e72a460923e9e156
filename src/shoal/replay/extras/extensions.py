"""Hooks for code of your own: told of every insert, sample, update and delete."""

from __future__ import annotations

from shoal.types import Array


class Extension:
    """Subclass it, override what you need and give it to `Replay(..., extensions=[...])`.

    Methods are called with the service's lock held, in the order things happen: be quick, do not raise, and do not call
    the service.
    """

    def inserted(self, table: str, keys: Array, priorities: Array) -> None: ...

    def sampled(self, table: str, keys: Array) -> None: ...

    def updated(self, table: str, keys: Array, priorities: Array) -> None: ...

    def deleted(self, table: str, keys: Array) -> None: ...
