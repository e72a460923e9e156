"""One run of a sweep as a process of its own, which ends in order when the sweep is gone."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from shoal.arguments.config_files import ALGORITHM, ConfigFile
from shoal.checkpoints import RunLock
from shoal.errors import UserError

LOCKED = 60.0  # seconds that a run of a sweep that was killed may take to end
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class RunProcess:
    """`shoal train … --resume auto`: begins, or goes on where it was."""

    def __init__(self, options: Mapping[str, Any], seed: int, path: Path) -> None:
        self.path, self.log = path, path.with_suffix(".log")
        _make_free(path)
        words = ConfigFile(path, options).words()
        rest = ["--seed", str(seed), "--run-dir", str(path), "--resume", "auto", "--json"]
        self._file: IO[bytes] = self.log.open("ab")
        parent = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "train", options[ALGORITHM], *words, *rest],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._file,
            start_new_session=True,  # Ctrl-C is the sweep's, which passes it on
            preexec_fn=lambda: _end_with(parent),
        )

    def code(self) -> int | None:
        """The exit code of a run that has ended."""
        code = self._process.poll()
        if code is not None:
            self._file.close()
        return code

    def end(self) -> None:
        """Ask it to end in order, with a checkpoint."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """For its end; then it is killed, and its nodes with it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._file.close()

    def why(self) -> str:
        """What it said last."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line.removeprefix("shoal: ") for line in lines if line.startswith("shoal: ")]
        return (told or lines or ["it said nothing"])[-1].strip()


def _make_free(path: Path) -> None:
    """Wait for what an earlier life of the sweep has left running; remove what had not begun."""
    deadline = time.monotonic() + LOCKED
    while path.is_dir():
        try:
            with RunLock(path):
                if not (path / "config.json").is_file():
                    shutil.rmtree(path)
                return
        except UserError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _end_with(parent: int) -> None:
    """In the child: when the sweep is killed, SIGTERM, on which a run saves a checkpoint and ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
