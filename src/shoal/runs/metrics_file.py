"""The metrics of a run as a file of rows: rows are appended, and what a run that goes on repeats is kept aside.

A run that was killed has written rows after its newest checkpoint. It makes these steps again, so that the rows would
be there twice: they move to metrics.cut.jsonl, below a line that says in which life of the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.checkpoints.own_files import open_own
from shoal.runs.tables import METRICS, parse_row

CUT = "metrics.cut.jsonl"


class MetricsFile:
    """Open for appending; a row is written whole or, where that raises OSError, not at all."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._file = open_own(run / METRICS, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write(self, row: Mapping[str, Any]) -> None:
        size = os.fstat(self._file).st_size
        try:
            _write_all(self._file, json.dumps(row).encode() + b"\n")
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def go_on_at(self, offset: int, life: int) -> list[str]:
        """Keep rows up to where a checkpoint was taken, and move those after it aside; sentences for what is not as it
        was then, and for what was moved."""
        told: list[str] = []
        size = os.fstat(self._file).st_size
        if size < offset:
            told.append(
                f"{self._run / METRICS} was shortened: it has {size:,} bytes and had {offset:,} at the checkpoint; "
                "what is missing is missing in curves"
            )
        kept = self._read(0, min(offset, size))
        if damaged := sum(parse_row(line) is None for line in kept.splitlines()):
            told.append(f"{self._run / METRICS} is damaged: rows that cannot be read, and stay as they are: {damaged}")
        if size > offset:
            after = self._read(offset, size)
            self._keep_aside(after, life)
            os.ftruncate(self._file, offset)
            rows = len(after.splitlines())
            told.append(f"rows of {METRICS} after that: {rows}, now in {CUT}, as these steps are made again")
        if kept and not kept.endswith(b"\n"):  # a line that was cut short must not swallow the next
            _write_all(self._file, b"\n")
        return told

    def close(self) -> None:
        os.close(self._file)

    def _keep_aside(self, rows: bytes, life: int) -> None:
        aside = open_own(self._run / CUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            _write_all(aside, json.dumps({"kind": "cut", "life": life}).encode() + b"\n" + rows)
            if not rows.endswith(b"\n"):
                _write_all(aside, b"\n")
            os.fsync(aside)  # before they are cut
        finally:
            os.close(aside)

    def _read(self, start: int, end: int) -> bytes:
        found = bytearray()
        while len(found) < end - start and (part := os.pread(self._file, end - start - len(found), start + len(found))):
            found += part
        return bytes(found)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
