"""A small process that outlives a run by a moment: it ends what still uses a directory, and removes the directory.

Ray's own helpers stay for a minute after the process that started Ray was killed, and its files for ever. Run as a
script with nothing but the standard library: it waits for the end of a pipe that only the run holds open.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time


class Reaper:
    """The run's side; `close` or the death of this process sets the other side to work."""

    def __init__(self, directory: str) -> None:
        theirs, self._ours = os.pipe()
        command = [sys.executable, "-S", "-E", __file__, str(theirs), directory, str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs],
            start_new_session=True,  # out of reach of Ctrl-C
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)

    def close(self) -> None:
        os.close(self._ours)
        self._process.wait()


def users(directory: str, spared: int) -> list[int]:
    """The processes that have a file of the directory open, other than the run itself, which may live on."""
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not entry.isdigit() or int(entry) in (os.getpid(), spared):
            continue
        try:
            files = [os.readlink(f"/proc/{entry}/fd/{number}") for number in os.listdir(f"/proc/{entry}/fd")]
        except OSError:  # gone, or another user's
            continue
        if any(file.startswith(directory + os.sep) for file in files):
            found.append(int(entry))
    return found


def main(fd: int, directory: str, run: int, patience: float = 5.0) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(fd, 1)  # returns at the end of the pipe
    deadline = time.monotonic() + patience
    while (pids := users(directory, run)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
