"""What a diagnosis is made of: findings with their remedies, measurements, and a suggestion."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from shoal.analysis.measures import packed

Level = Literal["ok", "warning", "fault"]
WIDTH, LEVEL, ABOUT = 80, 9, 13  # columns of a line, and of its first two words


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str  # a word or two
    text: str
    remedy: str | None = None

    def lines(self) -> list[str]:
        """In 80 columns."""
        told = [self.text, *([] if self.remedy is None else [f"→ {self.remedy}"])]
        room, blank = WIDTH - LEVEL - ABOUT, " " * (LEVEL + ABOUT)
        wrapped = [line for part in told for line in textwrap.wrap(part, room, break_on_hyphens=False)]
        head = f"{self.level:{LEVEL}}{self.about:{ABOUT}}"
        return [head + wrapped[0], *(blank + line for line in wrapped[1:])]


class Tell(Protocol):
    """Who is told of findings, in their parts."""

    def __call__(self, level: Level, about: str, text: str, remedy: str | None = None) -> None: ...


@dataclass(frozen=True)
class Suggestion:
    """What to train with, and why."""

    algorithm: str
    preset: str
    options: dict[str, Any]  # as typed, without the environment's and the network's own
    reasons: tuple[str, ...]
    command: str

    def lines(self) -> list[str]:
        wrapped = [textwrap.wrap(reason, WIDTH - 4, break_on_hyphens=False) for reason in self.reasons]
        reasons = [("  - " if not index else "    ") + line for part in wrapped for index, line in enumerate(part)]
        return ["suggested", *self._command_lines(), *reasons]

    def _command_lines(self) -> list[str]:
        """An option stays on one line with its value."""
        words = shlex.split(self.command)
        groups: list[str] = []
        for word, quoted in zip(words, map(shlex.quote, words)):
            if groups and not word.startswith("--"):
                groups[-1] += f" {quoted}"
            else:
                groups.append(quoted)
        lines = packed(groups, WIDTH - 10, " ")
        return [
            ("  " if not index else "      ") + line + (" \\" if index + 1 < len(lines) else "")
            for index, line in enumerate(lines)
        ]


@dataclass
class Diagnosis:
    """All that was found; `faults` keep a run from working, warnings from working well."""

    env: str
    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    suggestion: Suggestion | None = None

    @property
    def faults(self) -> list[Finding]:
        return [found for found in self.findings if found.level == "fault"]

    @property
    def warnings(self) -> list[Finding]:
        return [found for found in self.findings if found.level == "warning"]

    def verdict(self) -> str:
        def many(count: int, noun: str) -> str:
            return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"

        return f"{many(len(self.faults), 'fault')}, {many(len(self.warnings), 'warning')}"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"faults": len(self.faults), "warnings": len(self.warnings)}

    def __str__(self) -> str:
        lines = [line for found in self.findings for line in found.lines()]
        lines += [] if self.suggestion is None else ["", *self.suggestion.lines()]
        return "\n".join([*lines, "", self.verdict()])
