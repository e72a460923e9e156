"""Runs one side to its end, and ends whatever it has left behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from bench.peers import ROOT

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # every side is told its own
SHARED = Path("/dev/shm")
ADOPTS_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


class Failed(Exception):
    """A side gave no result; the text says what it said last."""


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Within it processes whose parent ends belong to this one: it can find them, whatever they call themselves."""
    switch = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0
    switch(ADOPTS_ORPHANS, 1, 0, 0, 0)
    try:
        yield
    finally:
        switch(ADOPTS_ORPHANS, 0, 0, 0, 0)


def run(command: list[str], limit: float) -> dict[str, Any]:
    """The object that a side prints as its last line, within `limit` seconds. Orphans are found while `adopting`."""
    surroundings = {name: value for name, value in os.environ.items() if name not in (*THREADS, "PYTHONPATH")}
    if command[0] == sys.executable:
        surroundings["PYTHONPATH"] = str(ROOT / "src")  # this tree, wherever the interpreter's Shoal is
    with (
        tempfile.TemporaryFile("w+") as output,  # no pipes: orphans would hold them
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryDirectory(prefix="p", ignore_cleanup_errors=True) as folder,  # Ray's sockets want short names
    ):
        before, shared = descendants(), shared_tensors()
        surroundings["TMPDIR"] = folder
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=surroundings, cwd=ROOT)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"no result after {limit:.0f} s") from None
        finally:
            end_all(but=before)
            process.wait()
            for left in shared_tensors() - shared:
                if not psutil.pid_exists(owner(left)):
                    left.unlink(missing_ok=True)
        output.seek(0)
        errors.seek(0)
        printed, complaints = output.read().strip(), errors.read().strip()
    if code:
        raise Failed(complaints[-1000:] or f"exit code {code}")
    with contextlib.suppress(json.JSONDecodeError, IndexError):
        found = json.loads(printed.splitlines()[-1])
        if isinstance(found, dict):
            return found
    raise Failed(f"its last line is no result: {printed[-300:]}")


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def end_all(but: set[psutil.Process]) -> None:
    """Ends all processes that this one has started, directly or not, since those were there."""
    left = descendants() - but
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)


def shared_tensors() -> set[Path]:
    """Files of torch's tensors in shared memory: who is killed leaves them behind."""
    return {path for path in SHARED.glob("torch_*") if owner(path)}


def owner(path: Path) -> int:
    """The process that made it, which its name tells: torch_PID_…; 0 if it does not."""
    number = path.name.split("_")[1]
    return int(number) if number.isdecimal() else 0
