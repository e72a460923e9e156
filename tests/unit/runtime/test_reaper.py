"""The reaper ends what uses a directory, spares the run itself, and removes the directory, whichever way a run ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.runtime.ray.reaper import Reaper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HOLD = "import sys, time; file = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(60)"
RUN = """
import os, subprocess, sys
from shoal.runtime.ray.reaper import Reaper
reaper = Reaper(sys.argv[1])
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def directory() -> Path:
    return Path(tempfile.mkdtemp())


@pytest.fixture
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that would stay and keeps a file of the directory open."""
    command = [sys.executable, "-c", HOLD, str(directory / "log")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.wait()


def test_closing_ends_what_uses_the_directory_and_spares_the_run(
    directory: Path, holder: subprocess.Popen[str]
) -> None:
    reaper = Reaper(str(directory))
    with open(directory / "ours", "w"):
        reaper.close()
    assert holder.wait(1.0) == -9
    assert not directory.exists()


def test_the_death_of_the_run_ends_what_uses_the_directory(directory: Path, holder: subprocess.Popen[str]) -> None:
    assert subprocess.run([sys.executable, "-c", RUN, str(directory)]).returncode == -9
    assert holder.wait(10.0) == -9
    deadline = time.monotonic() + 10.0
    while directory.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
