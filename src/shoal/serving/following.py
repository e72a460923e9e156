"""Newer policies taken while one is served: loaded and tried beside it, then put in its place between two batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shoal.errors import UserError
from shoal.serving.sources import Loaded, Source


class Follower:
    """Looks every `every` seconds. What is damaged, not finite or of other spaces is told once, and not taken."""

    def __init__(
        self, source: Source, served: Loaded, take: Callable[[Loaded], None], tell: Callable[[str], None], every: float
    ) -> None:
        source.check_follows()
        self._source, self._served, self._take, self._tell, self._every = source, served, take, tell, every
        self._told: set[str] = set()
        self._stamp: tuple[Any, ...] | None = None  # of when everything was looked at
        self.failures = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.look()

    async def look(self) -> bool:
        """Whether something newer was taken."""
        stamp = await asyncio.to_thread(self._source.stamp)
        if stamp == self._stamp:
            return False
        try:
            loaded, complaints = await asyncio.to_thread(self._source.newer, self._served)
        except UserError as error:
            self._complain(str(error))  # and looked at again: it may be in the middle of being replaced
            return False
        except Exception as error:  # whatever a damaged file does: what is served goes on
            self._complain(f"{type(error).__name__}: {error}")
            return False
        for complaint in complaints:
            self._complain(complaint)
        self._stamp = stamp
        if loaded is None:
            return False
        self._served = loaded
        self._take(loaded)
        return True

    def _complain(self, sentence: str) -> None:
        if sentence not in self._told:
            self.failures += 1
            self._told.add(sentence)
            self._tell(f"{sentence} What was served is served on.")
