"""Operations on the columns of a sample, declared once with the table."""

from __future__ import annotations

from typing import Protocol

from .messages import Array


class Operation(Protocol):
    def apply(self, data: dict[str, Array]) -> None: ...
