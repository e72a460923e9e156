"""What a run may leave behind, and how to find it."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path

import psutil

MARKER = "SHOAL_TEST_SESSION"  # every process a test starts inherits it, whoever its parent is later
os.environ[MARKER] = uuid.uuid4().hex


def marked_processes() -> list[psutil.Process]:
    """Processes that were started, directly or not, by this test session."""
    found = []
    for process in psutil.process_iter():
        try:
            own = process.pid != os.getpid() and process.environ().get(MARKER) == os.environ[MARKER]
            if own and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _named(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone meanwhile"


def shared_segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def _held_by_others(segments: set[str]) -> set[str]:
    """Those of these segments that a process of no concern to this session has in its memory."""
    if not segments:
        return set()
    own = {process.pid for process in marked_processes()} | {os.getpid()}
    held = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = "" if int(maps.parent.name) in own else maps.read_text()
        except OSError:
            continue
        held |= {name for name in segments if f"/dev/shm/{name}" in text}
    return held


def temporary_files() -> set[Path]:
    """What lies in the temporary directory, which is this session's own; torch's cache of compiled code is torch's."""
    return {path for path in Path(tempfile.gettempdir()).iterdir() if not path.name.startswith("torchinductor_")}


def left_behind(segments: set[str], patience: float = 10.0) -> str:
    """What the session leaves behind; empty when all is clean within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        processes = marked_processes() + psutil.Process().children(recursive=True)
        new_segments = shared_segments() - segments
        new_segments -= _held_by_others(new_segments)  # tests that run beside these, and other users
        new_files = temporary_files()
        if not processes and not new_segments and not new_files:
            return ""
        if time.monotonic() > deadline:
            shown = {process.pid: _named(process) for process in processes}
            return f"processes {shown}, shared memory {new_segments}, files {new_files}"
        time.sleep(0.1)
